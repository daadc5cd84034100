"""Runs that end early resume in the same state, and those that cannot are refused."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_rl.rollouts.sampler import Sampler
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.run import run
from support.marks import nightly_case
from support.rl_runs import evaluations, metrics, weights

FAULTY = ("engine=faulty", "trainer.max_gap=100")


@pytest.mark.parametrize(
    "options",
    [
        (),
        nightly_case(("algorithm=ppo",)),
        nightly_case(("algorithm=ppo", "critic.model=separate")),
        ("trainer.updates=2", "curriculum.pool=6", "curriculum.high=0.9"),
        nightly_case(
            (*FAULTY, "engine.noise=0.05", "engine.logprob_noise=0.05", "algorithm=grpo", "algorithm.kl=0.01")
        ),
        nightly_case((*FAULTY, "engine.topk_bits=3", "trainer.eval_every=3")),
    ],
    ids=["icepop", "ppo", "ppo with a model as its critic", "updates and pool", "noise", "unstable selection"],
)
@pytest.mark.usefixtures("faulty")
def test_an_interrupted_run_ends_in_the_same_rewards_and_weights(
    small_run: Compose, tmp_path: Path, options: tuple[str, ...], sparse_policy: Path
) -> None:
    if "engine.topk_bits=3" in options:
        options = (*options, f"init={sparse_policy}")
    whole = run(small_run(*options, "trainer.max_steps=4", f"output_dir={tmp_path / 'whole'}"))
    cut = (*options, "trainer.checkpoint_every=1", f"output_dir={tmp_path / 'cut'}")
    run(small_run(*cut, "trainer.max_steps=2"))
    rest = run(small_run(*cut, "trainer.max_steps=4", "resume=latest"))
    unlike = ("seconds", "progress", "trainer_idle", "engine_idle")
    rows = [
        [{k: v for k, v in row.items() if not k.startswith(unlike)} for row in metrics(f.dir)] for f in (whole, rest)
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    first, second = weights(whole.dir), weights(rest.dir)
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = [(f.dir / "rollouts.jsonl").read_text().splitlines() for f in (whole, rest)]
    assert lines[0] == lines[1]


def test_an_interrupted_run_says_so_to_its_sweep(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PolicyModule.training_step

    def asks_to_stop(module: PolicyModule, batch: int, batch_idx: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        step(module, batch, batch_idx)

    monkeypatch.setattr(PolicyModule, "training_step", asks_to_stop)
    stopped = run(small_run())
    assert (stopped.figures["status"], stopped.figures["steps"]) == ("interrupted", 1)


def test_ctrl_c_cuts_an_evaluation_off_and_the_resumed_run_makes_up_for_it(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("trainer.eval_every=1", "trainer.checkpoint_every=2")
    whole = run(small_run(*options, "name=whole"))
    evaluate, played = Sampler.evaluate, []

    def asked_to_stop(sampler: Sampler) -> Any:
        played.append("began")
        if len(played) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # the handler runs before this line or in it
            played.append("continued")
        return evaluate(sampler)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "evaluate", asked_to_stop)
        cut = run(small_run(*options, "name=cut"))
    assert played == ["began", "began"] and capfd.readouterr().err.count("stopping\n") == 1
    assert (cut.figures["status"], cut.figures["steps"]) == ("interrupted", 1)
    assert {row["step"] for row in evaluations(cut.dir)} == {"0"}
    rest = run(small_run(*options, "name=cut", "resume=latest"))
    assert evaluations(rest.dir) == evaluations(whole.dir)
    assert {row["step"] for row in evaluations(rest.dir)} == {"0", "1", "2", "3"}
    first, second = weights(whole.dir), weights(rest.dir)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_that_was_cut_off_between_checkpoints_takes_its_steps_again(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(small_run("name=whole"))
    step = PolicyModule.training_step

    def dies(module: PolicyModule, batch: int, batch_idx: int) -> None:
        step(module, batch, batch_idx)
        if module.progress.step == 3:
            raise KeyboardInterrupt

    options = ("trainer.checkpoint_every=1", "name=cut")
    with monkeypatch.context() as patch:
        patch.setattr(PolicyModule, "training_step", dies)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(small_run(*options))
    rest = run(small_run(*options, "resume=latest"))
    rewards = [[row["reward"] for row in metrics(f.dir)] for f in (whole, rest)]
    assert rewards[0] == rewards[1] and len(rewards[0]) == 3


@pytest.mark.usefixtures("faulty")
def test_a_resumed_run_must_be_the_same(small_run: Compose) -> None:
    run(small_run("trainer.max_steps=1"))
    with pytest.raises(CheckpointError, match=r"rollout\.group_size was 4, now 8"):
        run(small_run("resume=latest", "rollout.group_size=8"))
    faulty = run(small_run("resume=latest", *FAULTY, "engine.logprob_noise=0.1", "trainer.max_steps=2"))
    gaps = [float(row["logprob_gap"]) for row in metrics(faulty.dir)]
    assert gaps[0] < 1e-5 and gaps[-1] > 1e-2
    file = faulty.dir / "config.yaml"  # of the version before
    file.write_text(file.read_text().replace("rollout:\n", "rollout:\n  engine_noise: 0.0\n"))
    assert run(small_run("resume=latest", "trainer.max_steps=3")).figures["steps"] == 3


@pytest.mark.nightly(reason="three runs")
def test_a_resumed_run_knows_what_it_began_with(small_run: Compose, tmp_path: Path, policy: Path) -> None:
    latest, options = tmp_path / "outputs" / "latest", ("algorithm.kl=0.1", "evaluation.tasks=0")
    first = run(small_run(*options, "trainer.max_steps=1"))
    second = run(small_run(*options, "trainer.max_steps=1", f"init={latest}"))
    (begun,) = (first.dir / "checkpoints").glob("step-*")
    for given in (f"init={latest}", "init=null"):  # the link leads to the run itself by now
        resumed = run(small_run(*options, "trainer.max_steps=2", given, "resume=latest"))
        assert resumed.dir.resolve() == second.dir.resolve()
        assert f"init: {begun.resolve()}" in (resumed.dir / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=r"init=.*this run began with .*leave init out"):
        run(small_run(*options, "trainer.max_steps=2", "resume=latest"))
