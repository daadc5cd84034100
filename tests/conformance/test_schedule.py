"""Runs the schedule suite over every schedule that the registry lists, and over options of ours."""

import pytest

from arcforge_core import registry
from arcforge_core.testing import ScheduleSuite

OPTIONS = {"wsd": [{"shape": "linear", "decay": 0.75}]}
VARIANTS = [(name, options) for name in registry().names("schedule") for options in [{}, *OPTIONS.get(name, [])]]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join([v[0], *(f"{k}={x}" for k, x in v[1].items())]))
class TestSchedule(ScheduleSuite):
    @pytest.fixture
    def config(self, variant):
        name, options = variant
        return registry().get("schedule", name).load_schema()(**options)
