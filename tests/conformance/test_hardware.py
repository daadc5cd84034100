"""Runs the hardware suite over every backend that the registry lists, third-party ones included."""

import pytest

from arcforge_core import registry
from arcforge_core.testing import HardwareBackendSuite

BACKENDS = [name for name in registry().names("hardware") if name != "auto"]  # auto only picks one of them


@pytest.mark.parametrize("backend", BACKENDS)
class TestHardware(HardwareBackendSuite):
    @pytest.fixture
    def hardware(self, backend):
        component = registry().get("hardware", backend)
        return component.load()(component.load_schema()())
