"""`pipeline=general_chain`, small: killed by SIGKILL at random moments it ends in the ledger of an undisturbed run."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KILLS = 5
OF_RL = (
    "evaluation.tasks=8", "rollout.max_new_tokens=12", "trainer.max_steps=3", "trainer.checkpoint_every=1",
)  # fmt: skip
SMALL = [
    "pipeline=general_chain", "stages.demonstrations.episodes=24", "stages.problems.count=8",
    "stages.problems.heldout=2", "stages.sft.trainer.max_steps=4", "stages.sft.trainer.checkpoint_every=2",
    *(f"stages.{stage}.{one}" for stage in ("reasoning", "general", "distill") for one in OF_RL),
    *(f"stages.{stage}.rollout.groups=2" for stage in ("reasoning", "general")),
    *(f"stages.{stage}.rollout.group_size=2" for stage in ("reasoning", "general")), "stages.distill.rollout.groups=4",
]  # fmt: skip


def begin(folder, *more):
    command = [sys.executable, "-m", "arcforge_core", "pipeline", *SMALL, f"output_dir={folder}", *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output[-3000:]


def resumption(folder):
    return ["resume=latest"] if (folder / "latest" / "pipeline.json").exists() else []


def heldout(folder):
    """Returns each task's results in all stages of reinforcement learning."""
    stages = json.loads((folder / "latest" / "pipeline.json").read_text())["stages"]
    found = {stage["name"]: folder / "latest" / stage["folder"] / "heldout.csv" for stage in stages}
    return {name: path.read_text() for name, path in found.items() if path.exists()}


def ledger(folder):
    page = folder / "skills.html"
    command = [sys.executable, "-m", "arcforge_core", "report", "skills", str(folder / "latest"), f"--output={page}"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return re.findall(r"<td>.*?</td>|The end is [^<]*", page.read_text())


@pytest.mark.timeout(3600)
@pytest.mark.nightly(reason="a pipeline of six stages, twice, with seven starts of Python")
def test_five_kills_change_nothing(tmp_path):
    begun = time.monotonic()
    finish(begin(tmp_path / "whole"))
    seconds = time.monotonic() - begun
    draw, kills = random.Random(0), 0
    while kills < KILLS:
        process = begin(tmp_path / "killed", *resumption(tmp_path / "killed"))
        try:
            process.communicate(timeout=draw.uniform(0.05, 0.5) * seconds)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
    else:
        finish(process := begin(tmp_path / "killed", *resumption(tmp_path / "killed")))
    assert process.returncode == 0 and kills >= 2
    whole, killed = (heldout(tmp_path / name) for name in ("whole", "killed"))
    assert list(whole) == ["reasoning", "general", "distill"] and whole == killed
    assert ledger(tmp_path / "whole") == ledger(tmp_path / "killed") != []
