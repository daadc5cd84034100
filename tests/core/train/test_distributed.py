"""Two processes, started by torchrun, train like one that accumulates their micro-batches, and go on after a stop."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arcforge_core import load_pretrained
from arcforge_core.testing.runs import tiny_overrides
from arcforge_core.train.state import checkpoints

TRAIN = str(Path(sys.executable).with_name("arcforge-train"))
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def train(tmp_path, name, launcher, *options):
    """Runs a training to its end and returns the run's folder."""
    folder = tmp_path / name
    overrides = [*tiny_overrides(tmp_path), f"output_dir={folder}", "trainer.precision=fp32", "schedule.warmup=0"]
    command = [sys.executable, *launcher, TRAIN, *overrides, "trainer.max_steps=4", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list(folder.glob("*/*-train"))) == 1, "only the first process writes"
    return (folder / "latest").resolve()


def weights(run):
    return load_pretrained(checkpoints(run)[-1]).state_dict()


def momenta(run):
    """The optimizer's tensors at the end, by parameter and name."""
    saved = torch.load(checkpoints(run)[-1] / "training_state.pt", weights_only=True)["optimizer"]["state"]
    return {(number, name): torch.as_tensor(x) for number, values in saved.items() for name, x in values.items()}


@pytest.mark.slow(reason="starts seven interpreters with torch")
def test_two_processes_equal_one_and_go_on(tmp_path):
    two = train(tmp_path, "two", TWO, "trainer.accumulate=1")
    one = train(tmp_path, "one", [], "trainer.accumulate=2")
    for name, weight in weights(one).items():
        torch.testing.assert_close(weights(two)[name], weight, atol=2e-5, rtol=1e-4)
    train(tmp_path, "parts", TWO, "trainer.accumulate=1", "trainer.max_steps=2")
    parts = train(tmp_path, "parts", TWO, "trainer.accumulate=1", "resume=latest")
    for read in (weights, momenta):
        resumed, whole = read(parts), read(two)
        assert resumed.keys() == whole.keys()
        assert all(torch.equal(resumed[name], whole[name]) for name in whole)
