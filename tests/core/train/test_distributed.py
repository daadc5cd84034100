"""Two processes, started by torchrun, train like one that accumulates their micro-batches."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arcforge_core import load_pretrained
from arcforge_core.testing.runs import tiny_overrides
from arcforge_core.train.state import checkpoints

LAUNCHERS = {
    "one": [],
    "two": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
}


@pytest.mark.slow(reason="starts three interpreters with torch")
def test_two_processes_equal_one_that_accumulates(tmp_path):
    weights, options = {}, {"one": "trainer.accumulate=2", "two": "trainer.accumulate=1"}
    for name, launcher in LAUNCHERS.items():
        overrides = [*tiny_overrides(tmp_path), f"output_dir={tmp_path / name}", options[name]]
        script = Path(sys.executable).with_name("arcforge-train")
        command = [sys.executable, *launcher, str(script), *overrides, "trainer.max_steps=3", "trainer.precision=fp32"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
        runs = list((tmp_path / name).glob("*/*-train"))
        assert len(runs) == 1, "only the first process writes"
        weights[name] = load_pretrained(checkpoints(runs[0])[-1]).state_dict()
    for key, weight in weights["one"].items():
        torch.testing.assert_close(weights["two"][key], weight, atol=2e-5, rtol=1e-4)
