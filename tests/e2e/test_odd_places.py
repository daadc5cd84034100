"""A folder with blanks and umlauts, LANG=C, a terminal of 40 columns and an unwritable HOME, all together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL_RL = (
    "rollout.max_new_tokens=8", "rollout.groups=1", "rollout.refills=0", "rollout.drop_equal=false",
    "evaluation.tasks=2", "trainer.max_steps=1",
)  # fmt: skip
COMMANDS = [
    ("arcforge-train", "experiment=smoke", "name=grün", "trainer.max_steps=2"),
    ("arcforge-train", "experiment=smoke", "name=grün", "trainer.max_steps=3", "resume=outputs/by-name/grün"),
    ("arcforge-report", "outputs/by-name/grün"),
    ("arcforge-rl", "init=demo", "environment=math", "name=straße", *SMALL_RL),
    ("arcforge-eval", "checkpoint=grün", "functions=0", "max_tokens=64"),
    ("arcforge", "doctor"),
]


@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="six real commands, each of which imports torch")
def test_commands_of_a_first_hour_work_there(tmp_path):
    folder = tmp_path / "Über uns & Co"
    folder.mkdir()
    places = {"HOME": "/proc/nowhere", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment = {**os.environ, **places, "LC_ALL": "C", "LANG": "C", "COLUMNS": "40", "OMP_NUM_THREADS": "1"}
    environment.pop("ARCFORGE_CACHE", None)
    for command in COMMANDS:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "Traceback" not in done.stderr, f"{command}\n{done.stdout}{done.stderr}"
    run = (folder / "outputs" / "by-name" / "grün").resolve()
    assert run.name.endswith("-grün") and "grün" in (run / "report.html").read_text(encoding="utf-8")
    assert [path.name for path in sorted((run / "checkpoints").glob("step-*"))][-1] == "step-00000003"
    assert (folder / "outputs" / "by-name" / "straße" / "report.html").is_file()
