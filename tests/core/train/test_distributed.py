"""Two processes, started by torchrun, train like one that accumulates their micro-batches, and resume after a stop."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arcforge_core import load_pretrained
from arcforge_core.config.compose import compose
from arcforge_core.train import run
from arcforge_core.train.state import checkpoints
from support.runs import tiny_overrides

TRAIN = str(Path(sys.executable).with_name("arcforge-train"))
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


KILLED = """
import os, signal, sys
from arcforge_core.cli.train import main
from arcforge_core.train.module import LanguageModelModule

step = LanguageModelModule.training_step

def training_step(module, batch, batch_idx):
    if module.progress.step == int(os.environ["KILL_AFTER"][int(os.environ["TORCHELASTIC_RESTART_COUNT"])]):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
    step(module, batch, batch_idx)

LanguageModelModule.training_step = training_step
sys.exit(main())
"""
"""A training whose second process is killed after step 1, before a checkpoint, and after step 3."""


def overrides(tmp_path, name, *options):
    fixed = (f"output_dir={tmp_path / name}", "trainer.precision=fp32", "schedule.warmup=0", "trainer.max_steps=4")
    return [*tiny_overrides(tmp_path), *fixed, *options]


def train(tmp_path, name, *options, launcher=TWO, script=TRAIN):
    """Runs a training in processes of its own to its end and returns the run's folder."""
    folder = tmp_path / name
    command = [sys.executable, *launcher, script, *overrides(tmp_path, name, *options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list(folder.glob("*/*-train"))) == 1, "only the first process writes"
    return (folder / "latest").resolve()


def weights(folder):
    return load_pretrained(checkpoints(folder)[-1]).state_dict()


def momenta(folder):
    """The optimizer's tensors at the end, by parameter and name."""
    saved = torch.load(checkpoints(folder)[-1] / "training_state.pt", weights_only=True)["optimizer"]["state"]
    return {(number, name): torch.as_tensor(x) for number, values in saved.items() for name, x in values.items()}


@pytest.mark.slow(reason="starts three interpreters with torch")
def test_two_processes_equal_one(tmp_path):
    two = train(tmp_path, "two", "trainer.accumulate=1", "trainer.samples=0")
    one = run.train(compose(overrides(tmp_path, "one", "trainer.accumulate=2", "trainer.samples=0"))).dir
    for name, weight in weights(one).items():
        torch.testing.assert_close(weights(two)[name], weight, atol=2e-5, rtol=1e-4)


@pytest.mark.nightly(reason="starts twelve interpreters with torch, one after the other")
@pytest.mark.timeout(900)
def test_two_processes_that_are_stopped_or_killed_end_as_undisturbed_ones(tmp_path, monkeypatch):
    two = train(tmp_path, "two", "trainer.accumulate=1")
    train(tmp_path, "parts", "trainer.accumulate=1", "trainer.max_steps=2")
    parts = train(tmp_path, "parts", "trainer.accumulate=1", "resume=latest")
    monkeypatch.setenv("KILL_AFTER", "139")
    (tmp_path / "killed.py").write_text(KILLED)
    launcher = [*TWO, "--max-restarts=2"]
    killed = train(tmp_path, "killed", "trainer.accumulate=1", launcher=launcher, script=str(tmp_path / "killed.py"))
    rows = (killed / "metrics.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "2", "4"], "one run, its rows once"
    for read in (weights, momenta):
        whole = read(two)
        for resumed in (read(parts), read(killed)):
            assert resumed.keys() == whole.keys()
            assert all(torch.equal(resumed[name], whole[name]) for name in whole)
