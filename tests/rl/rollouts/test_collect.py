"""Groups of whatever an engine may say and an environment may give."""

import itertools
import math
from collections.abc import Iterable, Sequence

import pytest

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.environment import Episode, Outcome, Task
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.agent import SamplingSetup, TextDialogue
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs.learning import CurriculumConfig, RolloutConfig
from arcforge_rl.rollouts.collect import COUNTS, Collected, collect
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.trainer.figures import failures, rollout_figures
from support.policies import reward_even
from support.scripted_engine import ScriptedEngine

TOKENIZER = small_tokenizer()
END = TOKENIZER.decode([TOKENIZER.eos_id])
RIGHT, WRONG = f"2{END}", f"1{END}"
"""What `reward_even` says about them."""


@pytest.fixture(autouse=True)
def learnable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)


def collected(
    said: Iterable[str],
    size: int,
    groups: int = 1,
    drop_equal: Sequence[str] = ("reward",),
    refills: int = 0,
    must_work: bool = True,
) -> Collected:
    """Returns a step in which the engine says these, one after the other."""
    texts = iter(said)

    def script(text: str, params: SamplingParams) -> str:
        return next(texts)

    config = RolloutConfig(groups=groups, group_size=size, refills=refills)
    setup = SamplingSetup(TextDialogue(TOKENIZER), 5, 1.0, 500)
    environment, engine = CopyEnvironment(CopyConfig()), ScriptedEngine(TOKENIZER, script)
    curriculum = Curriculum(CurriculumConfig(), 0)
    return collect(environment, engine, setup, "seed", config, curriculum, drop_equal, must_work=must_work)


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


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """What each rollout's verifier raises in turn."""
    errors: list[Exception | None] = []
    score = CopyEnvironment.score

    async def broken(environment: CopyEnvironment, task: Task, episode: Episode) -> Outcome:
        if (error := errors.pop(0)) is not None:
            raise error
        return await score(environment, task, episode)

    monkeypatch.setattr(CopyEnvironment, "score", broken)
    return errors


def test_rollouts_that_failed_are_counted_by_kind_and_never_learnt_from(breaking: list[Exception | None]) -> None:
    """A third of them: before, all of these were trained on as wrong answers."""
    breaking += [None, SandboxFault("no space left"), None, None, ConnectionResetError("by peer"), None]
    found = collected([RIGHT, WRONG, WRONG, RIGHT, WRONG, WRONG], size=3, groups=2)
    assert [[rollout.number for rollout in group] for group in found.kept] == [[0, 2], [3, 5]]
    assert [rollout.number for rollout in found.everything] == [0, 2, 3, 5, 1, 4]
    assert found.counts["failed_sandbox"] == found.counts["failed_environment"] == 1
    assert {trace.reward for trace in found.traces} == {0.0, 1.0} and len(found.traces) == 4
    figures = rollout_figures(found)
    assert figures["reward"] == 0.5 and figures["failed_sandbox"] == 1
    assert failures(figures) == "1 sandbox, 1 environment"


def test_a_group_that_failed_is_left_out_and_its_task_has_no_pass_rate(breaking: list[Exception | None]) -> None:
    breaking += [SandboxFault("gone")] * 2 + [None] * 2
    found = collected([RIGHT, WRONG] * 2, size=2, groups=2)
    assert len(found.kept) == len(found.dropped) == 1
    assert found.counts == dict.fromkeys(COUNTS, 0) | {"failed_sandbox": 2}


def test_a_task_that_cannot_be_made_is_an_excluded_counted_group(monkeypatch: pytest.MonkeyPatch) -> None:
    task = CopyEnvironment.task

    def patchy(environment: CopyEnvironment, index: int) -> Task:
        if index == 0:
            raise ConnectionResetError("by peer")
        return task(environment, index)

    monkeypatch.setattr(CopyEnvironment, "task", patchy)
    found = collected([RIGHT, WRONG], size=2, groups=2)
    assert [[rollout.number for rollout in group] for group in found.kept] == [[2, 3]]
    assert found.counts["failed_environment"] == 2


def test_a_step_whose_every_rollout_failed_ends_the_run(breaking: list[Exception | None]) -> None:
    breaking += [ValueError("no such task")] * 4
    with pytest.raises(ArcforgeError, match="all 4 rollouts failed; the first: environment: ValueError: no such task"):
        collected([RIGHT, WRONG] * 2, size=2, groups=2)


def test_a_later_step_whose_every_rollout_failed_is_counted_and_not_filled_up(breaking: list[Exception | None]) -> None:
    breaking += [SandboxFault("gone")] * 4
    found = collected([RIGHT, WRONG] * 2, size=2, groups=2, refills=3, must_work=False)
    assert not found.kept and len(found.everything) == 4
    assert found.counts == dict.fromkeys(COUNTS, 0) | {"failed_sandbox": 4}
    figures = rollout_figures(found)
    assert figures["failed_sandbox"] == 4 and figures["sampled_tokens"] == 0
    assert not {"reward", "length", "truncated"} & set(figures), "means of nothing"


def test_replacements_that_all_failed_leave_the_rest_of_their_step(breaking: list[Exception | None]) -> None:
    breaking += [None] * 4 + [SandboxFault("gone")] * 2
    found = collected([RIGHT, WRONG, WRONG, WRONG, RIGHT, WRONG], size=2, groups=2, refills=3)
    assert len(found.kept) == 1 and len(found.dropped) == 2
    assert found.counts == dict.fromkeys(COUNTS, 0) | {"all_wrong": 1, "refills": 1, "failed_sandbox": 2}


def test_equal_groups_are_kept_where_they_teach() -> None:
    found = collected([RIGHT, WRONG], size=1, groups=2, drop_equal=())
    assert len(found.kept) == 2 and not found.dropped
