"""Control groups of the sandboxes: memory and processes, version 1 or 2, if this process may create groups."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "pids")
PREFIX = "arcforge-"


@dataclass(frozen=True)
class Parent:
    """A directory in which groups can be created, and the controllers available there."""

    folder: str
    version: int
    controllers: tuple[str, ...]


def find_parents(
    chosen: str | None = None, root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup"
) -> list[Parent]:
    """Returns where groups can be created: below this process's own groups, or below the version 2 group `chosen`.

    The kernel allows no controllers below a version 2 group that contains processes; then the result is empty, and a
    delegated empty group must be configured.
    """
    if chosen is not None:
        return _version_two(chosen)
    try:
        lines = [line.split(":", 2) for line in Path(own).read_text(encoding="utf-8").splitlines()]
    except OSError:  # not Linux
        return []
    found = []
    for _, names, path in lines:
        for controller in CONTROLLERS:
            folder = f"{root}/{names}{path}".rstrip("/")
            if controller in names.split(",") and os.access(f"{folder}/cgroup.procs", os.W_OK):
                found.append(Parent(folder, 1, (controller,)))
    if {name for parent in found for name in parent.controllers} == set(CONTROLLERS):
        return found
    unified = [path for number, _, path in lines if number == "0"]
    return found or [parent for path in unified for parent in _version_two(f"{root}{path}".rstrip("/"))]


def _version_two(folder: str) -> list[Parent]:
    try:
        offered = Path(folder, "cgroup.controllers").read_text(encoding="utf-8").split()
        control = Path(folder, "cgroup.subtree_control")
        wanted = [name for name in CONTROLLERS if name in offered]
        if set(wanted) - set(control.read_text(encoding="utf-8").split()):
            control.write_text(" ".join(f"+{name}" for name in wanted), encoding="utf-8")
        given = tuple(name for name in wanted if name in control.read_text(encoding="utf-8").split())
    except OSError:  # not ours, or it contains processes
        return []
    return [Parent(folder, 2, given)] if given and os.access(folder, os.W_OK) else []


class Group:
    """The groups of one sandbox, one below each parent; none without parents."""

    def __init__(self, parents: list[Parent], name: str) -> None:
        self.parents = parents
        self.folders = [f"{parent.folder}/{PREFIX}{os.getpid()}-{name}" for parent in parents]
        for folder in self.folders:
            os.mkdir(folder)

    def limit(self, memory: int, processes: int) -> None:
        """Sets the limits, with no swap if the kernel counts it."""
        for parent, folder in zip(self.parents, self.folders, strict=True):
            if "pids" in parent.controllers:
                _write(f"{folder}/pids.max", processes)
            if "memory" in parent.controllers and parent.version == 1:
                for name in ("limit_in_bytes", "memsw.limit_in_bytes"):
                    _write_memory(folder, name, memory)
            elif "memory" in parent.controllers:
                _write(f"{folder}/memory.max", memory)
                if os.path.exists(f"{folder}/memory.swap.max"):
                    _write(f"{folder}/memory.swap.max", 0)

    def enter(self, pid: int) -> None:
        """Adds a process; its later children are included."""
        for folder in self.folders:
            _write(f"{folder}/cgroup.procs", pid)

    def out_of_memory(self) -> int:
        """Returns the number of out-of-memory kills in the group."""
        return sum(_count(folder, ("memory.oom_control", "memory.events"), "oom_kill") for folder in self.folders)

    def refused(self) -> int:
        """Returns how often a process was not created for the limit of processes."""
        return sum(_count(folder, ("pids.events",), "max") for folder in self.folders)

    def remove(self) -> None:
        """Removes the groups; the kernel may need a moment after the last process."""
        for folder in self.folders:
            for _ in range(200):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.005)
                else:
                    break


def sweep(parents: list[Parent]) -> None:
    """Removes groups whose keeper is dead, e.g. after ``kill -9``, and kills processes left in them."""
    for parent in parents:
        for folder in Path(parent.folder).glob(f"{PREFIX}*"):
            keeper = folder.name.removeprefix(PREFIX).split("-")[0]
            with contextlib.suppress(OSError):  # another keeper may be sweeping, or the group is still in use
                if os.path.exists(f"/proc/{keeper}"):
                    continue
                for pid in _members(folder):
                    os.kill(pid, signal.SIGKILL)
                for _ in range(100):
                    if not _members(folder):
                        break
                    time.sleep(0.005)
                folder.rmdir()


def _members(folder: Path) -> list[int]:
    procs = folder / "cgroup.procs"
    return [int(pid) for pid in procs.read_text(encoding="utf-8").split()] if procs.exists() else []


def _count(folder: str, names: tuple[str, ...], wanted: str) -> int:
    """Returns a count in the first of these files that exists."""
    for name in names:
        try:
            text = Path(folder, name).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        return sum(count for key, count in _pairs(text) if key == wanted)
    return 0


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        yield key, int(value)


def _write_memory(folder: str, name: str, value: int) -> None:
    """Version 1 requires memory <= memory and swap at all times: raises the outer limit first."""
    path = f"{folder}/memory.{name}"
    if os.path.exists(path):
        both = f"{folder}/memory.memsw.limit_in_bytes"
        if name == "limit_in_bytes" and os.path.exists(both) and int(Path(both).read_text()) < value:
            _write(both, value)
        _write(path, value)


def _write(path: str, value: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)  # faster than Python's files, called often
    try:
        os.write(file, str(value).encode())
    finally:
        os.close(file)
