"""Prompts by remaining gap: in turn until all gaps are known, then in proportion, none starved, and resumable."""

from collections import Counter
from types import SimpleNamespace

import pytest

from arcforge_core.errors import ConfigError
from arcforge_rl.configs.algorithms import OpdConfig
from arcforge_rl.configs.collection import AsynchronousConfig, SynchronousConfig
from arcforge_rl.configs.environments import MixtureConfig
from arcforge_rl.configs.learning import CurriculumConfig
from arcforge_rl.environments.mixture import Mixture
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.gaps import LEAST, curriculum_of

MIXTURE = Mixture(MixtureConfig(parts={"sums": 3.0, "copy": 1.0}, environments={"sums": "arithmetic"}))


def config_of(ratios="gap", pool=None, collection=None):
    collection = collection or SynchronousConfig()
    curriculum = CurriculumConfig(pool=pool)
    return SimpleNamespace(algorithm=OpdConfig(ratios=ratios), curriculum=curriculum, collection=collection, seed=0)


def stages(curriculum, count):
    return Counter(MIXTURE.stage_of(MIXTURE.task(number)) for number in curriculum.take(count))


def test_parts_get_prompts_by_their_gap():
    curriculum = curriculum_of(config_of(), MIXTURE)
    assert stages(curriculum, 20) == {"sums": 10, "copy": 10}
    curriculum.learn_gaps({"sums": 0.1})
    assert stages(curriculum, 20) == {"sums": 10, "copy": 10}, "one gap is unknown"
    curriculum.learn_gaps({"sums": 0.1, "copy": 0.3})
    assert curriculum.figures["share_copy"] == pytest.approx(LEAST + 0.9 * 0.75)
    assert stages(curriculum, 200)["copy"] == pytest.approx(145, abs=2)
    for _ in range(30):
        curriculum.learn_gaps({"sums": -1.0, "copy": 0.3})
    assert stages(curriculum, 200)["sums"] == pytest.approx(200 * LEAST, abs=2)


def test_no_prompt_comes_twice_and_a_resumed_run_has_the_same():
    curriculum = curriculum_of(config_of(), MIXTURE)
    curriculum.learn_gaps({"sums": 0.2, "copy": 0.3})
    first = curriculum.take(17)
    other = curriculum_of(config_of(), MIXTURE)
    other.state = curriculum.state
    assert (rest := curriculum.take(30)) == other.take(30)
    assert len({*first, *rest}) == 47


def test_given_ratios_are_the_mixture_s_own():
    curriculum = curriculum_of(config_of("given"), MIXTURE)
    assert type(curriculum) is Curriculum and stages(curriculum, 40) == {"sums": 30, "copy": 10}


@pytest.mark.parametrize(
    ("config", "environment", "refused"),
    [
        (config_of(), SimpleNamespace(), "needs environment=mixture"),
        (config_of(pool=4), MIXTURE, r"curriculum\.pool=null"),
        (config_of(collection=AsynchronousConfig()), MIXTURE, "collection=sync"),
    ],
)
def test_other_runs_are_refused(config, environment, refused):
    with pytest.raises(ConfigError, match=refused):
        curriculum_of(config, environment)
