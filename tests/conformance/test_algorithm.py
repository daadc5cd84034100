"""Runs the algorithm suite over every algorithm that the registry lists, with the correction that belongs to it."""

import pytest

from arcforge_core.plugins.loader import registry
from arcforge_core.testing.algorithm_suite import AlgorithmSuite
from arcforge_rl.trainer.build import OWN, preset


@pytest.mark.parametrize("name", registry().names("algorithm"))
class TestAlgorithm(AlgorithmSuite):
    @pytest.fixture
    def make_algorithm(self, name):
        component = registry().get("algorithm", name)
        correction = preset(OWN.get(name, "none"))
        return lambda: component.load()(component.load_schema()(), correction)
