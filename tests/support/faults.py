"""Kills a process at the n-th call that changes files, fills the disk there, or cuts the power.

`faults.c` is compiled and loaded between the process and the C library, so it counts every write, fsync, rename, mkdir,
symlink and removal below a folder, those of Rust and C++ libraries too. It only works in a process that was started
under it: `run_under_faults` starts one, which calls `strike` in forked children.
"""

from __future__ import annotations

import ctypes
import enum
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")


class Action(enum.IntEnum):
    """What happens at the call; the numbers are those of `faults.c`."""

    KILL = 0
    """SIGKILL before it."""
    TORN = 1
    """Half of a write, then SIGKILL."""
    FULL = 2
    """It and all later ones, but for removals of what exists, fail as on a full disk."""


@dataclass(frozen=True)
class Change:
    """A call that was done.

    Attributes:
        call: ``write``, ``fsync``, ``rename``, ``mkdir``, ``symlink`` or ``remove``.
        path: what was changed.
        other: of a rename, the new name.
        inode: of a file that was written, flushed or removed; it stays through renames that are not seen here.
        size: bytes written.
    """

    call: str
    path: Path
    other: Path
    inode: int
    size: int

    @property
    def name(self) -> Path:
        """The name afterwards."""
        return self.other if self.call == "rename" else self.path


@dataclass(frozen=True)
class Outcome:
    """How a child ended, and the changes it made before."""

    killed: bool
    changes: list[Change]


def compiler() -> str | None:
    """Returns the C compiler, where faults can be injected at all."""
    return shutil.which("cc") if sys.platform == "linux" else None


def run_under_faults(script: Path, folder: Path, *arguments: str) -> str:
    """Runs a Python script in which `strike` works, and returns what it printed.

    Args:
        script: the script.
        folder: where the compiled library goes.
        arguments: of the script.

    Raises:
        RuntimeError: it failed; with its errors.
    """
    library = folder / "faults.so"
    compile_command = [compiler() or "cc", "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(compile_command, check=True)
    # one thread: a forked child has no others, and must not wait for them
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def strike(work: Callable[[], object], folder: Path, at: int, action: Action) -> Outcome:
    """Runs `work` in a forked child and strikes at its `at`-th change below `folder`, counted from 1; 0 never strikes.

    Raises:
        RuntimeError: the child failed in another way than by being killed.
    """
    journal = folder.parent / f"{folder.name}.journal"
    child = os.fork()
    if child == 0:
        try:
            descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            ctypes.CDLL(None).faults_arm(str(folder.resolve()).encode(), ctypes.c_long(at), int(action), descriptor)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status != 0:
        raise RuntimeError(f"the child ended with status {status} instead of being killed at change {at}")
    lines = (line.split("\t") for line in journal.read_text().splitlines())
    return Outcome(
        killed, [Change(c, Path(path), Path(to), int(inode), int(size)) for c, path, to, inode, size in lines]
    )


def cut_power(folder: Path, changes: list[Change], *, lose_names: bool) -> None:
    """Takes back what a power cut may take: data without a later fsync, and names whose folder had none.

    Removals are never taken back, which is the worst case.

    Args:
        folder: where the changes were made.
        changes: all that the process made.
        lose_names: whether new names are lost as well; else files keep theirs and only lose their content.
    """
    unsynced: set[int] = set()
    made: set[int] = set()
    pending: dict[int, Path] = {}  # number of the change that made a name -> what it is called by now
    for number, change in enumerate(changes):
        if change.call == "fsync":
            unsynced.discard(change.inode)
            pending = {n: name for n, name in pending.items() if name.parent != change.path}
        elif change.call == "remove":
            pending = {n: name for n, name in pending.items() if name != change.path}
            unsynced.discard(change.inode)
            made.discard(change.inode)  # a later file may get the same number
        elif change.call == "write":
            unsynced.add(change.inode)
            if change.inode not in made:
                pending[number] = change.path
            made.add(change.inode)
        else:
            pending = {n: _renamed(name, [change]) for n, name in pending.items()}
            pending[number] = change.name
    for path in _files(folder, unsynced):
        os.truncate(path, 0)
    if lose_names:
        durable = [(n, change) for n, change in enumerate(changes) if n not in pending]
        for number in sorted(pending, reverse=True):
            _take_back(folder, changes[number], [change for n, change in durable if n > number])


def _take_back(folder: Path, change: Change, durable: list[Change]) -> None:
    """Undoes what made a name, when all later changes that are not on disk have been undone."""
    path = _renamed(change.name, durable)
    if change.call == "rename":
        os.rename(path, change.path)
    elif change.call == "mkdir":
        shutil.rmtree(path)
    elif change.call == "symlink":
        path.unlink()
    for file in _files(folder, {change.inode}):
        file.unlink()


def _renamed(path: Path, changes: list[Change]) -> Path:
    for change in changes:
        if change.call == "rename" and path.is_relative_to(change.path):
            path = change.other / path.relative_to(change.path)
    return path


def _files(folder: Path, inodes: set[int]) -> list[Path]:
    return [path for path in folder.rglob("*") if path.stat(follow_symlinks=False).st_ino in inodes]
