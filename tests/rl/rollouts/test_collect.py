"""Groups of whatever an engine may say and an environment may give."""

import itertools
import math
from collections.abc import Iterable

import pytest

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.environment import Episode, Outcome, Task
from arcforge_core.environments.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError
from arcforge_core.testing.policies import reward_even
from arcforge_core.testing.scripted_engine import ScriptedEngine
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs_learning import CurriculumConfig, RolloutConfig
from arcforge_rl.rollouts.collect import Collected, collect
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.solver import Manner, TextSpeaker

TOKENIZER = small_tokenizer()
END = TOKENIZER.decode([TOKENIZER.eos_id])
RIGHT, WRONG = f"2{END}", f"1{END}"
"""What `reward_even` says about them."""


@pytest.fixture(autouse=True)
def learnable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)


def collected(said: Iterable[str], size: int, groups: int = 1) -> Collected:
    """Returns a step in which the engine says these, one after the other."""
    texts = iter(said)

    def script(text: str, params: SamplingParams) -> str:
        return next(texts)

    config = RolloutConfig(groups=groups, group_size=size, refills=0)
    manner = Manner(TextSpeaker(TOKENIZER), 5, 1.0, 500, "seed")
    environment, engine = CopyEnvironment(CopyConfig()), ScriptedEngine(TOKENIZER, script)
    return collect(environment, engine, lambda filling: manner, config, Curriculum(CurriculumConfig(), 0))


def test_empty_truncated_and_endless_outputs() -> None:
    """Without a token nothing can be learnt from; what was cut off is learnt from as it is."""
    found = collected([RIGHT, WRONG, "", "2 2 2", END, "1 " * 100_000], size=6)
    (group,) = found.kept
    assert found.counts["nothing_sampled"] == 1
    assert [rollout.number for rollout in group] == [0, 1, 3, 4, 5]
    assert [rollout.trace.truncated for rollout in group] == [False, False, True, False, True]
    assert [rollout.outcome.reward for rollout in group] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert group[3].trace.num_sampled == 1 and group[4].trace.num_sampled == 5


def test_groups_in_which_nothing_was_sampled_are_counted_and_left_out() -> None:
    found = collected(["", "", RIGHT, WRONG], size=2, groups=2)
    assert len(found.kept) == len(found.dropped) == 1
    assert found.counts == {"all_right": 0, "all_wrong": 0, "all_equal": 0, "nothing_sampled": 2, "refills": 0}


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_rewards_that_are_no_numbers_end_the_run_wherever_they_stand(
    wrong: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an environment that judges by itself; the largest of some numbers and NaN depends on their order."""
    numbers = itertools.count()

    async def score(environment: CopyEnvironment, task: Task, episode: Episode) -> Outcome:
        return Outcome({"reward": wrong if next(numbers) == place else 1.0}, {"reward": "said"})

    monkeypatch.setattr(CopyEnvironment, "score", score)
    with pytest.raises(ArcforgeError, match=rf"task copy/.*: its environment gives reward={wrong}"):
        collected([RIGHT] * 3, size=3)
