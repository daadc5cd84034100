"""Arcforge's own suite over the Acme backend, and how its config reaches the kernels."""

import pytest

from acme_arcforge_npu.backend import AcmeNpu
from acme_arcforge_npu.configs import AcmeNpuConfig
from arcforge_core.errors import ConfigError
from arcforge_core.testing import HardwareBackendSuite


class TestAcmeNpu(HardwareBackendSuite):
    @pytest.fixture(params=[8, 128], ids=["small tiles", "large tiles"])
    def hardware(self, request):
        return AcmeNpu(AcmeNpuConfig(tile=request.param, simulate=True))


def test_without_a_chip_the_probe_says_what_to_do(monkeypatch):
    monkeypatch.delenv("ACME_NPU_SIMULATE", raising=False)
    probe = AcmeNpu(AcmeNpuConfig()).probe()
    assert not probe.ok
    assert "ACME_NPU_SIMULATE=1" in probe.reason


def test_a_tile_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"hardware\.tile=4: must be between 8 and 256"):
        AcmeNpuConfig(tile=4)
