"""Groups of a run: equal ones, those of one rollout, and rewards that compare a group."""

from pathlib import Path
from typing import Any

import pytest
from tests.rl.trainer.conftest import Compose

from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ConfigError
from arcforge_rl.trainer.module import PolicyModule, weight_of
from arcforge_rl.trainer.run import run
from support.policies import save_policy
from support.rl_runs import metrics

FAULTY = ("engine=faulty", "trainer.max_gap=100")


def test_equal_groups_are_replaced_and_counted(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(small_run("rollout.group_size=2", "rollout.refills=0", "rollout.groups=8", "trainer.max_steps=1"))
    (row,) = metrics(found.dir)
    dropped = int(row["all_right"]) + int(row["all_wrong"])
    assert dropped > 0 and int(row["groups"]) == 8 - dropped and row["refills"] == "0"
    found = run(small_run("rollout.group_size=2", "rollout.refills=9", "rollout.groups=8", "trainer.max_steps=1"))
    (row,) = metrics(found.dir)
    assert int(row["groups"]) == 8 and int(row["refills"]) > 0
    found = run(small_run("rollout.group_size=2", "rollout.drop_equal=false", "trainer.max_steps=1"))
    (row,) = metrics(found.dir)
    assert int(row["groups"]) == 4 and row["all_right"] == row["all_wrong"] == "0"


def test_distillation_trains_on_groups_of_one_rollout(small_run: Compose, tmp_path: Path) -> None:
    """As in the paper; groups of one are all equal, and all of them used to be left out."""
    teacher = save_policy(tmp_path / "teacher", seed=1)
    found = run(small_run("algorithm=opd", "rollout.group_size=1", f"+teachers.default={teacher}"))
    rows = metrics(found.dir)
    assert all(float(row["groups"]) == 4 and float(row["all_wrong"]) == 0 for row in rows)
    assert all(float(row["grad_norm"]) > 0 for row in rows)
    assert float(rows[-1]["tokens"]) == sum(float(row["sampled_tokens"]) for row in rows) > 0


def test_the_depth_of_distillation_grows_with_the_steps(
    small_run: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[int] = []
    monkeypatch.setattr("arcforge_rl.algorithms.opd.keep_replies", lambda trace, depth: depths.append(depth))
    teacher = f"+teachers.default={save_policy(tmp_path / 'teacher', seed=1)}"
    options = ("algorithm=opd", "rollout.group_size=1", teacher, "algorithm.depth=2", "algorithm.depth_steps=2")
    run(small_run(*options, "trainer.checkpoint_every=1"))
    assert depths == [2] * 8 + [3] * 4, "four prompts in each of three steps"
    run(small_run(*options, "resume=latest", "trainer.max_steps=5"))
    assert depths[12:] == [3] * 4 + [4] * 4, "a resumed run continues where it was"


def test_algorithms_that_compare_nothing_train_on_groups_of_one_rollout(small_run: Compose) -> None:
    rows = metrics(run(small_run("algorithm=reinforce_pp", "rollout.group_size=1")).dir)
    assert all(float(row["groups"]) == 4 for row in rows)


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "rloo", "icepop", "double_sided"])
def test_algorithms_that_compare_rollouts_refuse_groups_of_one(small_run: Compose, algorithm: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"rollout\.group_size=1: must be at least 2: algorithm={algorithm} compares"
    ):
        run(small_run(f"algorithm={algorithm}", "rollout.group_size=1"))


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (("rollout.group_size=1", "algorithm=reinforce_pp"), r"rollout\.group_size=1: must be at least 2 with"),
        (("collection=async",), r"environment='copy': needs collection=sync"),
    ],
)
def test_rewards_that_compare_a_group_need_one_that_is_judged_together(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], refused: str
) -> None:
    monkeypatch.setattr(CopyEnvironment, "compares", True, raising=False)
    with pytest.raises(ConfigError, match=refused):
        run(small_run(*options))


@pytest.mark.nightly(reason="three runs")
def test_updates_share_a_step_and_each_has_the_weight_of_one(small_run: Compose, tmp_path: Path) -> None:
    options = ("algorithm=opd", f"+teachers.default={save_policy(tmp_path / 'teacher', seed=1)}", "optimizer.lr=0")
    losses = []
    for updates in (1, 2, 4):
        found = run(
            small_run(*options, "rollout.drop_equal=false", "trainer.max_steps=1", f"trainer.updates={updates}")
        )
        losses.append(float(metrics(found.dir)[0]["policy_loss"]))
    assert losses[0] != 0 and losses == pytest.approx([losses[0]] * 3, rel=1e-4)


@pytest.mark.parametrize(
    "options", [("rollout.groups=3", "trainer.updates=2"), ("rollout.refills=0", "trainer.updates=4")]
)
def test_each_update_has_the_weight_of_one_however_groups_fall(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    weights: list[float] = []
    update = PolicyModule._update

    def watched(module: PolicyModule, traces: Any, scale: float) -> dict[str, float]:
        weights.append(scale * weight_of(traces))
        return update(module, traces, scale)

    monkeypatch.setattr(PolicyModule, "_update", watched)
    run(small_run(*options, "rollout.group_size=2"))  # of pairs many are equal, and left out
    assert weights and weights == pytest.approx([1.0] * len(weights), rel=1e-5)
