"""The sandbox contract: untrusted programs run in a place of their own, within limits, and end in a typed result.

A sandbox has a work directory, ``/workspace``, that is empty at the start or a copy of a base, keeps its files from one
`exec` to the next and is gone after `stop`. Files elsewhere, as in the folder that TMPDIR names, may last as long.
Every process that an `exec` started, background ones too, is dead when its result is there. There is no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from arcforge_core.errors import ArcforgeError

__all__ = [
    "WORKSPACE",
    "Command",
    "ExecResult",
    "Limits",
    "Outcome",
    "Sandbox",
    "SandboxBackend",
    "SandboxError",
    "SandboxFault",
    "SandboxProbe",
]

WORKSPACE = "/workspace"
"""The work directory, as programs inside name it."""


class SandboxError(ArcforgeError):
    """What was asked of a sandbox cannot be done; asking again gives the same answer."""


class SandboxFault(SandboxError):
    """The sandbox itself broke, not the program in it; the same work may be tried again in another one."""


class Outcome(StrEnum):
    """How a command ended. Only the first is the program's own will."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    """Killed at `Limits.wall_seconds`."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed something in it for `Limits.memory_bytes`; known only where that limit is a control group's."""
    OUTPUT_LIMIT = "output_limit"
    """Killed because one of its streams passed `Limits.output_bytes`."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one command, and of the files of its sandbox.

    Attributes:
        cpu_seconds: processor time of each process.
        wall_seconds: time from start to end.
        memory_bytes: all processes and files of the sandbox together where a control group can be made, else each
            process.
        processes: processes and threads at one time.
        disk_bytes: all files of the sandbox, and each one.
        output_bytes: standard output and standard error, each.
    """

    cpu_seconds: float = 10.0
    wall_seconds: float = 20.0
    memory_bytes: int = 1 << 30
    processes: int = 64
    disk_bytes: int = 256 << 20
    output_bytes: int = 1 << 20


@dataclass(frozen=True)
class Command:
    """One program to run.

    Attributes:
        argv: program, found by the sandbox's own PATH, and arguments.
        stdin: what it reads.
        env: variables beside PATH, HOME, TMPDIR and LANG; nothing is inherited from the caller.
        cwd: working directory inside.
        limits: instead of the sandbox's own; `disk_bytes` then bounds each file only.
    """

    argv: Sequence[str]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORKSPACE
    limits: Limits | None = None


@dataclass(frozen=True)
class ExecResult:
    """How a command ended.

    Attributes:
        outcome: exit, signal, timeout, out_of_memory or output_limit.
        code: exit code for exit, number of the signal for signal, None otherwise.
        stdout: at most `Limits.output_bytes`.
        stderr: likewise.
        seconds: wall time.
    """

    outcome: Outcome
    code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with code 0."""
        return self.outcome is Outcome.EXIT and self.code == 0


@dataclass(frozen=True)
class SandboxProbe:
    """Whether a backend works here, and what it does not stop here.

    Attributes:
        ok: untrusted code may be run.
        reason: what was found, or what is missing.
        gaps: limits that are weaker here than the contract asks for, in words; empty for none.
        facts: what the machine has of that which the backend needs, by name; given with a no, too.
    """

    ok: bool
    reason: str
    gaps: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class Sandbox(Protocol):
    """One sandbox; made by `SandboxBackend.open`.

    Paths are relative to the work directory, where commands start, or absolute. ``/workspace`` names it for the methods
    here with every backend, and for programs inside where the sandbox has a file system of its own.
    """

    async def prepare(self) -> None:
        """Gets ready for the next `exec`, so that it starts sooner; need not be called."""

    async def exec(self, command: Command) -> ExecResult:
        """Runs a command and returns when all that it started is dead.

        Raises:
            SandboxFault: the sandbox broke.
            SandboxError: the sandbox has been stopped, or the command is malformed.
        """

    async def read(self, path: str, limit: int = 1 << 20) -> bytes:
        """Returns a regular file's bytes.

        Raises:
            SandboxError: it is a link, a pipe, a folder, absent, or longer than `limit`.
        """

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file and the folders above it; raises `SandboxError` where the sandbox has no room or no right."""

    async def upload(self, source: Path, path: str) -> None:
        """Copies a file or folder of the host into the sandbox; links stay links and are resolved inside only."""

    async def download(self, path: str, target: Path) -> None:
        """Copies a file or folder of the sandbox into the new folder `target` of the host.

        Raises:
            SandboxError: there are links that lead outside, devices, or more than the sandbox may hold; nothing is left
                in `target`.
        """

    async def snapshot(self, target: Path) -> None:
        """Copies ``/workspace`` into the new folder `target` of the host, which `SandboxBackend.open` takes as base.

        The tree is what untrusted code left: links in it may point anywhere. Give it to sandboxes only.
        """

    async def stop(self) -> None:
        """Ends the sandbox and removes all that it held; a second call does nothing."""


class SandboxBackend(Protocol):
    """Makes sandboxes; its target is called as ``target(config)``. One backend belongs to one event loop.

    Used as ``async with backend:``, which ends every sandbox of it.
    """

    name: str
    limits: Limits

    def probe(self) -> SandboxProbe:
        """Says whether untrusted code can be run here; never raises."""

    async def open(self, base: Path | None = None, limits: Limits | None = None) -> Sandbox:
        """Returns a fresh sandbox whose ``/workspace`` is empty or a private copy of the folder `base`.

        Raises:
            SandboxError: `probe` says no, with its reason, or `base` is no folder.
        """

    async def close(self) -> None:
        """Ends every sandbox; a second call does nothing."""

    async def __aenter__(self) -> SandboxBackend: ...

    async def __aexit__(self, *exception: object) -> None: ...
