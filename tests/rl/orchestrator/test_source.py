"""Whole runs with rollouts and training at the same time."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_overrides, small_run
from tests.rl.trainer.test_run import metrics, weights

from arcforge_core.contracts.environment import Episode, Outcome, Task
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.rollouts.collect import TracedRollout
from arcforge_rl.rollouts.sampler import Sampler
from arcforge_rl.trainer.run import run, with_shared_cores
from support.run_chaos import checked

__all__ = ["learnable", "no_drawing", "policy", "small_run"]
TESTS = Path(__file__).parents[2]
LEARN = str(TESTS / "rl" / "trainer" / "learn.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
ASYNC = ("collection=async", "engine=paged", "engine.cache_tokens=4096", "evaluation.tasks=0")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("drop_equal", "refills"), [("false", 50), ("true", 50), ("true", 1), ("true", 0)])
def test_without_staleness_it_is_the_synchronous_loop_bit_for_bit(
    small_run: Compose, tmp_path: Path, drop_equal: str, refills: int
) -> None:
    """Deterministic ops make the composition of batches not matter; groups, seeds, order and weights are the same."""
    options = (*ASYNC[1:], "trainer.deterministic=true", "algorithm=double_sided", "trainer.max_steps=4")
    options += (f"rollout.drop_equal={drop_equal}", f"rollout.refills={refills}")
    sync = run(small_run(*options, f"output_dir={tmp_path / 'sync'}"))
    config = ("collection=async", "collection.eta=0", "collection.reset_optimizer=false", "collection.concurrency=5")
    free = run(small_run(*options, *config, f"output_dir={tmp_path / 'async'}"))
    first, second = weights(sync.dir), weights(free.dir)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert lines(sync.dir) == lines(free.dir)
    same = ("reward", "groups", "length", "policy_loss", "grad_norm", "logprob_gap_max", "entropy", "all_right")
    rows = [[{name: row[name] for name in same} for row in metrics(found.dir)] for found in (sync, free)]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    for figure in ("trainer_idle", "engine_idle", "trained_per_sampled", "engine_tokens", "engine_batch"):
        assert all(float(row[figure]) >= 0 for found in (sync, free) for row in metrics(found.dir)), figure
    assert all(float(row["staleness_take_max"]) == 0 for row in metrics(free.dir))


def test_over_sampling_aborts_the_surplus_and_stays_synchronous(small_run: Compose) -> None:
    options = ("collection.eta=0", "collection.oversample=1.5", "rollout.drop_equal=false", "rollout.group_size=2")
    rows = metrics(run(small_run(*ASYNC, *options, "collection.max_staleness=0")).dir)
    assert [float(row["dropped_surplus"]) for row in rows] == [2.0, 2.0, 2.0], "six groups admitted, four trained"
    assert all(float(row["groups"]) == 4 and float(row["staleness_take_max"]) == 0 for row in rows)
    with pytest.raises(ConfigError, match="only measures, and collection=async trains on stale rollouts"):
        run(small_run(*ASYNC, *options, "algorithm=grpo"))  # the surplus starts before the update


def test_one_step_off_trains_each_step_on_the_rollouts_of_the_step_before(small_run: Compose) -> None:
    """A whole step of rollouts at a time: the first has no staleness, all others exactly one step."""
    options = ("collection.eta=1", "collection.whole_batches=true", "rollout.drop_equal=false", "trainer.max_steps=5")
    rows = metrics(run(small_run(*ASYNC, *options)).dir)
    assert [float(row["staleness_take_mean"]) for row in rows] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert [float(row["staleness_take_max"]) for row in rows] == [0.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.slow(reason="twenty-five steps")
def test_a_run_learns_from_stale_rollouts_within_the_bound(small_run: Compose) -> None:
    options = ("trainer.max_steps=25", "rollout.groups=8", "rollout.group_size=8", "collection.max_staleness=2")
    found = run(small_run(*ASYNC, *options, "trainer.max_gap=1e-4"))
    rows = metrics(found.dir)
    rewards = [float(row["reward"]) for row in rows]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:3]) / 3 + 0.2
    assert max(float(row["staleness_take_max"]) for row in rows) in (1.0, 2.0)
    assert all(float(row["logprob_gap"]) < 1e-5 for row in rows if row["logprob_gap"])
    last = rows[-1]
    assert sum(float(last[f"staleness_take_{n}"]) for n in range(9)) == pytest.approx(1.0)
    for name in ("trainer_idle", "engine_idle", "prefix_hits", "trained_per_sampled"):
        assert all(0.0 <= float(row[name]) <= 1.0 for row in rows), name
    assert float(last["rollout_p99"]) >= float(last["rollout_p50"]) > 0
    ledger = Ledger(found.dir / "ledger.sqlite")
    progress = ledger.progress()
    assert progress["batched"] == 0 and progress["trained"] == sum(line["learnt"] for line in lines(found.dir))
    ledger.close()


def test_a_run_that_is_resumed_trains_on_the_recorded_batches_again(small_run: Compose) -> None:
    """The last checkpoint is lost: steps 3 and 4 are taken from the ledger, then the run continues."""
    options = (*ASYNC, "trainer.checkpoint_every=2", "trainer.deterministic=true")
    first = run(small_run(*options, "trainer.max_steps=4"))
    before, rows = lines(first.dir), metrics(first.dir)
    shutil.rmtree(first.dir / "checkpoints" / "step-00000004")
    again = run(small_run(*options, "trainer.max_steps=8", "resume=latest"))
    assert again.dir == first.dir
    after = lines(again.dir)
    assert [line["step"] for line in after if line["step"] > 4]

    def learnt(found: list[dict[str, Any]]) -> list[Any]:
        return [
            (line["step"], line["rollout"], line["rewards"]) for line in found if line["learnt"] and line["step"] <= 4
        ]

    assert learnt(after) == learnt(before)
    same = ("step", "policy_loss", "grad_norm", "reward", "staleness_take_mean")
    assert [[row[name] for name in same] for row in metrics(again.dir)][:4] == [
        [row[name] for name in same] for row in rows
    ]
    names = [line["rollout"] for line in after if line["learnt"]]
    assert len(set(names)) == len(names), "nothing is trained on twice"
    assert "dropped: skipped" not in checked(again.dir / "ledger.sqlite"), "rollouts that waited are lost"
    shares = [float(row["trained_per_sampled"] or 0.0) for row in metrics(again.dir)]
    assert shares[2:4] == [0.0, 0.0], "replayed ones are not sampled, nor are those that waited"
    assert 0.0 < shares[7] <= 1.0, "eta + 1 = 3 steps at most are of those that waited"


@pytest.mark.nightly(reason="three runs")
def test_collection_may_change_when_a_run_is_resumed(small_run: Compose) -> None:
    run(small_run(*ASYNC[1:], "algorithm=double_sided", "trainer.max_steps=2"))
    second = run(small_run(*ASYNC, "trainer.max_steps=4", "resume=latest"))
    assert len(metrics(second.dir)) == 4
    third = run(small_run(*ASYNC[1:], "algorithm=double_sided", "trainer.max_steps=5", "resume=latest"))
    fourth = run(small_run(*ASYNC, "collection.eta=1", "trainer.max_steps=7", "resume=latest"))
    assert third.dir == fourth.dir and [int(row["step"]) for row in metrics(fourth.dir)] == [1, 2, 3, 4, 5, 6, 7]
    names = [(line["step"], line["rollout"]) for line in lines(fourth.dir)]
    assert len(set(names)) == len(names)


def break_verdicts(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """The sandbox of every n-th verdict of ``environment=copy`` dies."""
    score, numbers = CopyEnvironment.score, itertools.count(1)

    async def broken(environment: CopyEnvironment, task: Task, episode: Episode) -> Outcome:
        if next(numbers) % every == 0:
            raise SandboxFault("its supervisor died")
        return await score(environment, task, episode)

    monkeypatch.setattr(CopyEnvironment, "score", broken)


def test_a_replayed_batch_has_its_counts(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures, restarts and dropped groups of a batch that is taken from the ledger are those of its first time."""
    options = (*ASYNC, "trainer.checkpoint_every=1", "trainer.deterministic=true")
    with monkeypatch.context() as once:
        break_verdicts(once, 4)
        first = run(small_run(*options, "trainer.max_steps=3"))
    rows = metrics(first.dir)
    shutil.rmtree(first.dir / "checkpoints" / "step-00000003")
    run(small_run(*options, "trainer.max_steps=3", "resume=latest"))
    names = [n for n in rows[0] if n.startswith(("failed", "retried", "dropped", "staleness_put", "all_"))]
    again = [[row.get(name) for name in names] for row in metrics(first.dir)]
    assert again == [[row[name] for name in names] for row in rows]
    assert sum(float(row["failed_sandbox"] or 0) for row in rows[2:]) > 0


def test_evaluations_have_the_weights_of_their_step_and_are_not_repeated(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While rollouts run and weights are handed over every other step; the last one after a step without hand-over."""
    evaluate, found = Sampler.evaluate, list[set[int]]()

    def watched(sampler: Sampler) -> list[list[TracedRollout]]:
        groups = evaluate(sampler)
        branches = [branch for group in groups for rollout in group for branch in rollout.branches]
        found.append({v for b in branches for v, sampled in zip(b.versions, b.sampled, strict=True) if sampled})
        return groups

    monkeypatch.setattr(Sampler, "evaluate", watched)
    options = (*ASYNC[:-1], "collection.push_every=2", "trainer.eval_every=2", "trainer.checkpoint_every=2")
    first = run(small_run(*options, "trainer.max_steps=5"))
    assert found == [{0}, {2}, {4}, {5}]
    shutil.rmtree(first.dir / "checkpoints" / "step-00000005")
    found.clear()
    run(small_run(*options, "trainer.max_steps=6", "resume=latest"))
    assert found == [{6}], "that of step 4 was made"
    with (first.dir / "evaluations.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = [(row["step"], row["domain"]) for row in rows]
    assert len(set(names)) == len(names) and {step for step, _ in names} == {"0", "2", "4", "6"}
    assert all(0 <= float(row["pass@1"]) <= float(row["pass@2"]) <= 1 for row in rows)


def test_task_services_train_one_policy(small_run: Compose) -> None:
    options = (
        "+collection.services.plain={environment: copy, ratio: 3}",
        "+collection.services.other={environment: math, options: {kinds: [expressions]}, concurrency: 2}",
    )
    found = run(small_run(*ASYNC, *options, "collection.adjust=2", "rollout.drop_equal=false", "trainer.max_steps=4"))
    last = metrics(found.dir)[-1]
    assert float(last["service_plain_ratio"]) + float(last["service_other_ratio"]) == pytest.approx(1.0)
    assert float(last["service_plain_groups"]) > float(last["service_other_groups"]) > 0
    ledger = Ledger(found.dir / "ledger.sqlite")
    services = {group.service: group.rollouts[0].key for group in ledger.all_groups()}
    ledger.close()
    assert set(services) == {"plain", "other"}


def test_with_pauses_every_reply_has_the_weights_of_one_step(small_run: Compose) -> None:
    options = ("collection.push=pause", "collection.push_every=2", "trainer.max_steps=6", "rollout.max_new_tokens=24")
    found = run(small_run(*ASYNC, *options))
    ledger = Ledger(found.dir / "ledger.sqlite")
    versions = {rollout.oldest for group in ledger.all_groups() for rollout in group.rollouts if rollout.payload}
    assert versions <= {0, 2, 4, 6} and len(versions) > 1
    ledger.close()


def test_a_broken_sandbox_now_and_then_is_tried_again(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    break_verdicts(monkeypatch, 5)
    rows = metrics(run(small_run(*ASYNC)).dir)
    assert sum(float(row["failed_sandbox"] or 0) for row in rows) > 0
    assert sum(float(row["retried"] or 0) for row in rows) > 0


def test_an_error_of_the_thread_ends_the_run_with_one_line(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(environment: CopyEnvironment, task: Task, episode: Episode) -> Outcome:
        return Outcome({"reward": float("nan")}, {"reward": ""})

    monkeypatch.setattr(CopyEnvironment, "score", wrong)
    with pytest.raises(ArcforgeError, match="its environment gives reward=nan, which is not finite"):
        run(small_run(*ASYNC))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("engine=simple",), "engine='simple': collection=async needs an engine that takes requests one by one"),
        (("algorithm=grpo", "correction=none"), "correction='custom': only measures, and collection=async"),
        (("algorithm=grpo",), "collection.allow_uncorrected=true"),
        (("collection.push_every=4", "collection.max_staleness=2"), r"collection.push_every=4: must be at most 3"),
        (("collection.stale=wait",), "collection.stale='wait'"),
        (
            ("collection.push_every=2", "trainer.eval_every=3", "evaluation.tasks=1"),
            r"trainer.eval_every=3: must be a mul",
        ),
        (
            ("engine.max_running=4", "engine.max_waiting=6", "collection.concurrency=7"),
            r"collection.concurrency=7: must be at most engine.max_waiting=6",
        ),
        (
            ("engine.max_running=4", "engine.max_waiting_per_owner=3"),
            r"collection.concurrency=4: must be at most engine.max_waiting_per_owner=3",
        ),
        (("collection.eta=-1",), "collection.eta=-1.0: must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused_before_work(small_run: Compose, options: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(small_run("collection=async", "engine=paged", *options))


@pytest.mark.parametrize("option", ["collection.allow_uncorrected=true", "collection.eta=0"])
def test_algorithms_without_correction_are_allowed_where_they_are_asked_for(small_run: Compose, option: str) -> None:
    assert run(small_run(*ASYNC, "algorithm=grpo", option)).figures["steps"] == 3


def test_trainer_and_engine_share_the_cores(small_run: Compose) -> None:
    def threads(*options: str, cores: int = 8) -> int | None:
        return with_shared_cores(small_run(*options), cores).trainer.threads

    assert threads(*ASYNC, "trainer.threads=null") == 4 and threads(*ASYNC, "trainer.threads=null", cores=1) == 1
    assert threads(*ASYNC, "trainer.threads=3") == 3
    assert threads("trainer.threads=null") is None


@pytest.mark.nightly(reason="three training processes; tests/rl/orchestrator/test_ledger.py kills a scripted run")
def test_a_run_killed_twice_is_resumed_and_trains_on_every_rollout_once(
    small_run: Compose, policy: Path, tmp_path: Path
) -> None:
    """Wherever SIGKILL comes: rollouts run, wait, train, or a checkpoint is being written."""
    options = [*small_overrides(policy, tmp_path / "outputs"), *ASYNC, "trainer.max_steps=12"]
    options += ["trainer.checkpoint_every=3", f"folder={tmp_path / 'run'}"]
    folder = tmp_path / "run"
    for rows in (4, 8):
        extra = [f"resume={folder}"] if folder.exists() else []
        child = subprocess.Popen([sys.executable, LEARN, *options, *extra], env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while child.poll() is None and time.monotonic() < deadline:
            table = folder / "metrics.csv"
            if table.exists() and len(table.read_text().splitlines()) > rows:
                child.kill()
            time.sleep(0.02)
        assert child.wait() == -signal.SIGKILL
    done = subprocess.run([sys.executable, LEARN, *options, f"resume={folder}"], env=ENVIRONMENT, timeout=240)
    assert done.returncode == 0
    assert [int(row["step"]) for row in metrics(folder)] == list(range(1, 13))
    names = [line["rollout"] for line in lines(folder) if line["learnt"]]
    ledger = Ledger(folder / "ledger.sqlite")
    rollouts = [one for group in ledger.all_groups() for one in group.rollouts]
    ledger.close()
    assert len(set(names)) == len(names) == sum(one.state == "trained" for one in rollouts)
    assert all((one.reason is not None) == (one.state == "dropped") for one in rollouts)
