"""Runs the optimizer suite over every optimizer that the registry lists, and over options of ours."""

import pytest

from arcforge_core import registry
from arcforge_core.testing import OptimizerSuite

OPTIONS = {
    "muon": [{"head": "muon", "router": "muon", "ns_dtype": "fp32"}],
    "muon_split": [{"momentum_style": "heavy_ball"}],
}
VARIANTS = [(name, options) for name in registry().names("optimizer") for options in [{}, *OPTIONS.get(name, [])]]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join([v[0], *(f"{k}={x}" for k, x in v[1].items())]))
class TestOptimizer(OptimizerSuite):
    @pytest.fixture
    def config(self, variant):
        name, options = variant
        return registry().get("optimizer", name).load_schema()(**options)
