"""Every attack once more as an ordinary user, where root runs the tests."""

import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from arcforge_rl.sandbox import system

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")


def become_ordinary(user, folder, needed):
    """Run by root in a process of its own: becomes a user who can walk to what the tests need only."""
    parents = {parent for path in needed for parent in map(str, Path(path).parents)}
    closed = [parent for parent in sorted(parents) if not os.stat(parent).st_mode & 0o001]
    system.unshare(system.NEW_MOUNTS)
    system.mount("none", "/", "", system.RECURSIVE | system.SLAVE)
    handles = {path: os.open(path, os.O_PATH) for path in needed}
    for parent in closed:
        if os.path.isdir(parent) and not os.stat(parent).st_mode & 0o001:
            system.mount("tmpfs", parent, "tmpfs", 0, "mode=0755")
    for path, handle in handles.items():
        os.makedirs(path, exist_ok=True)
        system.mount(f"/proc/self/fd/{handle}", path, "", system.BIND | system.RECURSIVE)
    os.chown(folder, user, user)
    os.chdir(needed[0])
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


@pytest.mark.nightly(reason="every attack once more")
@pytest.mark.skipif(os.getuid() != 0, reason="this run is an ordinary user's already, and cannot become another's")
def test_as_an_ordinary_user():
    here = Path(__file__).parent
    needed = [str(Path(__file__).parents[3]), sys.prefix, sys.base_prefix]
    with tempfile.TemporaryDirectory(prefix="arcforge-ordinary-") as folder:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--confcutdir={here}",  # what all other tests need, torch, would be loaded for nothing
            f"--basetemp={folder}/t",
            *map(str, sorted(here.glob("test_*attacks.py"))),
        ]
        source = [
            "import os\nfrom pathlib import Path\nfrom arcforge_rl.sandbox import system",
            inspect.getsource(become_ordinary),
            f"become_ordinary(61000, {folder!r}, {needed!r})",
            f"os.execv({command[0]!r}, {command!r})",
        ]
        env = {**os.environ, "HOME": folder, "TMPDIR": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(source)], env=env, capture_output=True, text=True, check=False, timeout=280
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed, skipped = (re.search(rf"(\d+) {word}", done.stdout.splitlines()[-1]) for word in ("passed", "skipped"))
    assert int(passed[1]) > 180 and skipped is None, done.stdout[-500:]
