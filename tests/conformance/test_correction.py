import pytest

from arcforge_core.testing import CorrectionSuite
from arcforge_rl.algorithms.corrections import Correction
from arcforge_rl.configs.algorithms import BoundsConfig
from arcforge_rl.trainer.build import preset

PRESETS = ("none", "tis", "icepop", "double_sided", "dppo", "seq_geo", "opsm")


class TestPresets(CorrectionSuite):
    @pytest.fixture(params=PRESETS)
    def make_correction(self, request):
        return lambda: Correction(preset(request.param))


class TestEstimates(CorrectionSuite):
    @pytest.fixture(params=["k1", "k2", "k3"])
    def make_correction(self, request):
        return lambda: Correction(BoundsConfig(metric=request.param, action="mask", high=0.1, level="sequence"))
