"""What the five kinds of user type, from an empty folder, ends in what they wanted: one script for each walk."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(Path(__file__).parent.glob("*.sh"))
LINES = 40
USERS = ("researcher", "engineer", "serving", "chip", "newcomer")
INSTALL = """
install_here() {
  rm -rf "site/$1"
  pip install -q --no-deps --no-build-isolation --no-cache-dir --target "site/$1" "./$1"
  export PYTHONPATH="$PWD/site/$1"
}
"""
"""``pip install ./PACKAGE`` of a walk, into its own folder: the environment of the tests remains as it was."""


def test_each_user_walks_twice_and_shortly():
    assert sorted(path.stem.partition("_")[0] for path in SCRIPTS) == sorted(USERS * 2)
    assert all(len(path.read_text().splitlines()) <= LINES for path in SCRIPTS)


@pytest.mark.nightly(reason="whole commands in fresh processes, up to two minutes each")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_walk_ends_in_what_was_wanted(script, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ARCFORGE_", "PYTEST_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "PORT": str(port), "REPOSITORY": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        ["bash", "-c", INSTALL + script.read_text()],
        cwd=tmp_path, env={**inherited, **own}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
