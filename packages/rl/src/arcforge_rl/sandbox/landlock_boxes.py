"""Confines the keeper's commands by Landlock."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

from arcforge_rl.sandbox import seccomp, system
from arcforge_rl.sandbox.boxes import (
    IGNORED_BY_PYTHON,
    INPUT,
    PATH,
    SCRIPT,
    STATUS,
    STDERR,
    STDOUT,
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    Box,
)
from arcforge_rl.sandbox.forks import children, drop_privileges, end_all, place, supervise
from arcforge_rl.sandbox.trees import Size, copy_tree, give, give_tree, remove_tree
from arcforge_rl.sandbox.users import Users
from arcforge_rl.sandbox.view import View

LANDLOCK_FOLDER = "arcforge-landlock-"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class LandlockBoxes:
    """Landlock and the filter alone, in host directories; a supervisor per command kills its remaining processes."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.users = Users()
        self.gaps = self.users.gaps()
        for left in Path(tempfile.gettempdir()).glob(f"{LANDLOCK_FOLDER}*"):  # left by killed keepers
            ours = stat.S_ISDIR(left.lstat().st_mode) and left.lstat().st_uid == os.getuid()
            if ours and not os.path.exists(f"/proc/{left.name.removeprefix(LANDLOCK_FOLDER).split('-')[0]}"):
                remove_tree(str(left))
        self.root = tempfile.mkdtemp(prefix=f"{LANDLOCK_FOLDER}{os.getpid()}-")
        os.chmod(self.root, 0o711)
        self.readable = ["/usr", *config["read_only"], *SYSTEM_FOLDERS, *SYSTEM_FILES]
        self.filter = seccomp.program(network=False)

    def reached(self, path: str) -> str:
        """Returns the path: this keeper has the host's files."""
        return path

    def open(self, name: str, disk: int, view: View) -> Box:
        """Creates the directories; those of agents belong to the verifier's group, who may read the work directory."""
        box = Box(f"{self.root}/{name}", disk, self.users.take(), self.users.take(), view)
        for part in ("work", "tmp", "verifier-tmp"):
            os.makedirs(f"{box.folder}/{part}", mode=0o700)
        give_tree(box.folder, box.user)
        give(f"{box.folder}/verifier-tmp", box.verifier)
        self.show(box)
        return box

    def show(self, box: Box) -> None:
        """Lets the verifier's group read the work directory."""
        if box.verifier is not None:
            os.chown(box.work, -1, box.verifier)
            os.chmod(box.work, 0o750)

    def fill(self, box: Box, base: str) -> Size:
        """Copies a base."""
        copied = copy_tree(base, box.work)
        give_tree(box.work, box.user)
        self.show(box)
        return copied

    def close(self, box: Box) -> str:
        """Returns the directory."""
        self.users.give_back(box.user)
        self.users.give_back(box.verifier)
        return box.folder

    def start(self, box: Box, fds: dict[int, int], verifier: bool) -> int:
        """Forks the supervisor."""
        pid = os.fork()
        if not pid:
            try:
                self._become(box, fds, verifier)
            except BaseException:
                os.write(fds[STDERR], traceback.format_exc().encode())
            finally:
                os._exit(127)
        return pid

    def _become(self, box: Box, fds: dict[int, int], verifier: bool) -> NoReturn:
        """Becomes the supervisor: the confined shell is its child, and it adopts the shell's orphans."""
        home = f"{box.folder}/{'verifier-tmp' if verifier else 'tmp'}"
        own, others = ([home], [box.work]) if verifier else ([box.work, home], [])
        readable = [*others, *(path for path in self.readable if os.path.exists(path))]
        drop_privileges(box.user_of(verifier))
        system.prctl(system.SET_SUBREAPER, 1)
        system.prctl(system.SET_PDEATHSIG, signal.SIGTERM)
        child = os.fork()
        if child:
            supervise(child, fds[STATUS])
        os.setsid()
        system.prctl(system.SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(box.work)
        environment = {"PATH": PATH, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
        system.restrict_files(readable, DEVICES, own)
        place({n: fds[n] for n in (SCRIPT, STDOUT, STDERR, INPUT)})
        for number in IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        system.install_filter(self.filter)
        os.execve("/bin/sh", ["sh"], environment)

    def signal(self, child: int, handle: int, number: int) -> None:
        """Signals the command."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)

    def kill(self, pid: int, child: int) -> None:
        """Signals the supervisor and kills its children, because a supervisor that is ending ignores the signal."""
        os.kill(pid, signal.SIGTERM)
        end_all(children(pid))

    def end(self) -> None:
        """Deletes the directory of all sandboxes."""
        remove_tree(self.root)
