"""The sandbox contract: untrusted programs run isolated, within limits, and return a typed result.

A sandbox has a work directory, ``/workspace`` or another path, which is initially empty or a copy of a base, keeps its
files between calls of `exec` and is removed by `stop`. So do further folders; files elsewhere, as in the directory
TMPDIR, may last as long. Commands run as one of two users: the agent, or a verifier that the agent cannot reach.
Every process started by an `exec`, including background processes, is dead before its result is returned. Those of a
`start` live until its program ends or the sandbox does. There is no network; ports may forward to Unix sockets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from arcforge_core.errors import ArcforgeError
from arcforge_core.moved import renamed

if TYPE_CHECKING:  # the keeper of sandboxes imports this module, and needs no event loop
    from asyncio import StreamReader, StreamWriter

__all__ = [
    "WORKSPACE",
    "Command",
    "CommandStatus",
    "ExecResult",
    "ExitStatus",
    "Process",
    "Sandbox",
    "SandboxBackend",
    "SandboxBoundError",
    "SandboxError",
    "SandboxFault",
    "SandboxLimits",
    "SandboxProbe",
    "SandboxUser",
]

WORKSPACE = "/workspace"
"""The work directory, as programs inside name it."""


class SandboxError(ArcforgeError):
    """A sandbox operation is impossible; retrying gives the same answer."""


class SandboxFault(SandboxError):
    """The sandbox itself failed, not the program in it; the work may be retried in another sandbox."""


class SandboxBoundError(SandboxError):
    """Files of a sandbox exceed a bound on what may be copied out of it.

    Attributes:
        bound: ``bytes``, ``members`` (files, directories and links), ``depth`` (directories in each other) or ``path``
            (bytes of a path or of a link's text).
        limit: its value.
    """

    def __init__(self, message: str, bound: str, limit: int) -> None:
        super().__init__(message)
        self.bound, self.limit = bound, limit


class CommandStatus(StrEnum):
    """How a command ended. Only `EXIT` is the program's own decision."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    """Killed at `SandboxLimits.wall_seconds`."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed a process for exceeding `SandboxLimits.memory_bytes`; detected only with a control group."""
    OUTPUT_LIMIT = "output_limit"
    """Killed because one of its streams exceeded `SandboxLimits.output_bytes`."""


class SandboxUser(StrEnum):
    """As whom a command runs.

    A verifier reads the work directory and the agent's folders, and can write to none of them. It has its own HOME and
    TMPDIR, folders that agents cannot see, and no forwarded ports. Agents can neither signal its processes nor read
    their memory.
    """

    AGENT = "agent"
    VERIFIER = "verifier"


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one command, and of the files of its sandbox.

    Attributes:
        cpu_seconds: processor time of each process.
        wall_seconds: time from start to end.
        memory_bytes: all processes and files of the sandbox together if a control group can be created, otherwise each
            process.
        processes: concurrent processes and threads.
        disk_bytes: all files of the sandbox together, and each file.
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
        argv: program, looked up in the sandbox's own PATH, and arguments.
        stdin: contents of standard input.
        env: variables in addition to PATH, HOME, TMPDIR and LANG; nothing is inherited from the caller.
        cwd: working directory inside the sandbox; ``/workspace`` is the work directory, wherever it is.
        limits: override the sandbox's limits; `disk_bytes` then bounds each file only.
        user: as whom it runs.
    """

    argv: Sequence[str]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORKSPACE
    limits: SandboxLimits | None = None
    user: SandboxUser = SandboxUser.AGENT


@dataclass(frozen=True)
class ExecResult:
    """How a command ended.

    Attributes:
        outcome: exit, signal, timeout, out_of_memory or output_limit.
        code: exit code for exit, number of the signal for signal, None otherwise.
        stdout: at most `SandboxLimits.output_bytes`.
        stderr: likewise.
        seconds: wall time.
    """

    outcome: CommandStatus
    code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the program exited by itself with code 0."""
        return self.outcome is CommandStatus.EXIT and self.code == 0


@dataclass(frozen=True)
class ExitStatus:
    """How a started process ended.

    Attributes:
        outcome: exit, signal or out_of_memory.
        code: exit code for exit, number of the signal for signal, None otherwise.
    """

    outcome: CommandStatus
    code: int | None

    @property
    def ok(self) -> bool:
        """Whether the program exited by itself with code 0."""
        return self.outcome is CommandStatus.EXIT and self.code == 0


@dataclass(frozen=True)
class SandboxProbe:
    """Whether a backend works on this machine, and which limits it cannot enforce here.

    Attributes:
        ok: untrusted code may be run.
        reason: the result of the check, or the missing requirement.
        gaps: limits that are weaker here than the contract requires, in words; empty for none.
        facts: properties of the machine that the backend depends on, by name; also given if `ok` is False.
    """

    ok: bool
    reason: str
    gaps: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class Process(Protocol):
    """A program that runs beside the commands of its sandbox; made by `Sandbox.start`, shaped as that of `asyncio`.

    Attributes:
        stdin: standard input; `drain` waits while the program does not read, and raises `ConnectionError` once it has
            closed its input or ended.
        stdout: standard output. Its buffer is bounded: while no caller reads, a program that writes more waits. After
            the end, the bytes written before it can still be read. A stream ends when the program does, or earlier if
            the backend sees that the program has closed it.
        stderr: standard error, likewise; both must be read.
    """

    @property
    def stdin(self) -> StreamWriter: ...

    @property
    def stdout(self) -> StreamReader: ...

    @property
    def stderr(self) -> StreamReader: ...

    async def wait(self) -> ExitStatus:
        """Returns how the program ended, when every process that it started is dead; read or unread output is no
        condition. A process that `kill` or `Sandbox.stop` ended was ended by SIGKILL.

        Raises:
            SandboxFault: the sandbox failed; reading raises it too.
        """

    def send_signal(self, number: int) -> None:
        """Sends a signal to the program, not to processes that it started; none if it has ended.

        Raises:
            SandboxError: there is no signal with this number.
        """

    def kill(self) -> None:
        """Kills the program and every process that it started."""


class Sandbox(Protocol):
    """One sandbox; made by `SandboxBackend.open`.

    Paths are relative to the work directory, where commands start, or absolute. The methods here accept ``/workspace``
    with every backend, programs inside only if the sandbox has its own file system.
    """

    async def prepare(self) -> None:
        """Prepares the next `exec`, so that it starts sooner; optional."""

    async def exec(self, command: Command) -> ExecResult:
        """Runs a command and returns when every process that it started is dead.

        Raises:
            SandboxFault: the sandbox failed.
            SandboxError: the sandbox was stopped, or the command is malformed.
        """

    async def start(self, command: Command, buffer_bytes: int = 1 << 16) -> Process:
        """Starts a program that runs beside commands and other started programs, until it ends or the sandbox does.

        All share the limits of the sandbox; while several run, the largest `memory_bytes` and `processes` among them
        apply to all together. `wall_seconds` and `output_bytes` do not apply to a started program, and `snapshot` is
        refused while it runs.

        Args:
            command: the program; `stdin` must be empty, because input is written to the process.
            buffer_bytes: of each output stream; up to about twice as many are held, and as much as a pipe holds. It is
                also the longest line that ``readline`` accepts.

        Raises:
            SandboxFault: the sandbox failed.
            SandboxError: the sandbox was stopped, or the command is malformed.
        """

    async def read(self, path: str, limit: int = 1 << 20, user: SandboxUser = SandboxUser.AGENT) -> bytes:
        """Returns the bytes of a regular file that a user can read.

        Raises:
            SandboxBoundError: it is longer than `limit` bytes.
            SandboxError: the path is a link, a pipe, a directory, or absent.
        """

    async def write(self, path: str, data: bytes, user: SandboxUser = SandboxUser.AGENT) -> None:
        """Writes a file and its parent directories; raises `SandboxError` if space or permission is missing."""

    async def upload(self, source: Path, path: str, user: SandboxUser = SandboxUser.AGENT) -> None:
        """Copies a host file or directory into the sandbox; links stay links and resolve only inside the sandbox."""

    async def download(self, path: str, target: Path, user: SandboxUser = SandboxUser.AGENT) -> None:
        """Copies a file or directory of the sandbox into the new host directory `target`.

        Hard links and holes stay such. A cancelled call may still complete `target`.

        Raises:
            SandboxBoundError: it exceeds a bound; `target` does not exist afterwards.
            SandboxError: it contains links that lead outside, or devices; likewise.
        """

    async def snapshot(self, target: Path) -> None:
        """Copies the work directory into the new host directory `target`, which `SandboxBackend.open` accepts as base.

        Hard links and holes stay such, so that it takes no more of the host's disk than of the sandbox's. Untrusted
        code wrote the tree: links in it may point anywhere. Pass it only to sandboxes. A cancelled call may still
        complete `target`.

        Raises:
            SandboxBoundError: the tree exceeds a bound; `target` does not exist afterwards.
        """

    async def stop(self) -> None:
        """Ends the sandbox and removes all of its files; idempotent."""


class SandboxBackend(Protocol):
    """Creates sandboxes; its target is called as ``target(config)``. A backend belongs to one event loop.

    Use it as ``async with backend:``, which ends all of its sandboxes on exit.

    Attributes:
        forwards: whether `open` can forward ports.
        views: whether `open` accepts layers, folders and a work directory, and which ``at`` may be laid over the
            system's own files; None: none of these, and no ``at``.
    """

    name: str
    limits: SandboxLimits
    forwards: bool
    views: tuple[str, ...] | None

    def probe(self) -> SandboxProbe:
        """Checks whether untrusted code can be run here; never raises."""

    async def open(
        self,
        base: Path | None = None,
        limits: SandboxLimits | None = None,
        forward: Mapping[int, Path] | None = None,
        *,
        layers: Sequence[tuple[Path, str]] = (),
        folders: Sequence[str] = (),
        verifier_folders: Sequence[str] = (),
        workdir: str = WORKSPACE,
    ) -> Sandbox:
        """Returns a fresh sandbox whose work directory is empty or a private copy of the directory `base`.

        Args:
            base: initial contents of the work directory.
            limits: of the sandbox and its commands; None: the backend's.
            forward: port -> Unix socket of the host. A connection inside to ``127.0.0.1:port`` is one to that socket;
                nothing else can be reached, and the socket's file cannot be seen. Commands of such a sandbox share its
                loopback network. If the host's program does not listen, connections are reset.

            layers: host folder and the absolute path at which it is shown, read-only. Of several at one path, later
                ones lie over earlier ones; those at ``/usr`` and ``/etc`` lie over the system's own. Every user must be
                able to read it, and the host must not change it while a sandbox shows it.
            folders: further directories to which agents may write, initially empty; absolute paths.
            verifier_folders: likewise of the verifier; agents do not see them.
            workdir: path of the work directory.

        Raises:
            SandboxBoundError: `base` exceeds what the limits leave room for.
            SandboxError: `probe` fails, with its reason; `base` or a layer is not a directory; a port cannot be
                forwarded; paths lie in each other or in the system's; or the backend has no such views.
        """

    async def close(self) -> None:
        """Ends every sandbox; idempotent."""

    async def __aenter__(self) -> SandboxBackend: ...

    async def __aexit__(self, *exception: object) -> None: ...


__getattr__ = renamed(__name__, Outcome="CommandStatus", Limits="SandboxLimits")
