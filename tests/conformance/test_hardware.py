"""Runs the hardware suite over every backend that the registry lists, third-party ones included."""

import pytest

from arcforge_core import registry
from arcforge_core.testing import HardwareBackendSuite


def suite_of(backend):
    """Returns the suite with the ops that a backend has kernels for."""
    component = registry().get("hardware", backend)
    built = component.load()(component.load_schema()())

    class Suite(HardwareBackendSuite):
        ops = sorted({kernel.op for kernel in built.kernels()}) if built.probe().ok else ()

        @pytest.fixture
        def hardware(self):
            return component.load()(component.load_schema()())

    return Suite


for name in registry().names("hardware"):
    if name != "auto":  # it only picks one of them
        globals()[f"Test_{name}"] = suite_of(name)
