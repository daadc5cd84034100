"""Sandboxes owned by a keeper: the common base of `bubblewrap` and `landlock`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from arcforge_core.config.schema import SandboxConfig
from arcforge_core.contracts.sandbox import (
    WORKSPACE,
    Command,
    CommandStatus,
    ExecResult,
    SandboxError,
    SandboxFault,
    SandboxLimits,
    SandboxProbe,
    SandboxUser,
)
from arcforge_rl.configs.commands import LocalSandboxConfig
from arcforge_rl.sandbox.cgroups import find_parents
from arcforge_rl.sandbox.client import KeeperClient
from arcforge_rl.sandbox.files import FileOperations
from arcforge_rl.sandbox.process import StartedProcess, check_start, writer
from arcforge_rl.sandbox.streams import Collector, Feeder, Stream
from arcforge_rl.sandbox.view import view_of

log = logging.getLogger("arcforge.sandbox")

SCRIPT_BYTES = 30_000
"""Maximum bytes of a command's arguments and variables: they go through one packet, escaped, and one pipe's buffer."""


@dataclass
class Shell:
    """A confined process that waits for its command."""

    number: int
    ended: asyncio.Future[dict[str, Any]]
    stdin: Feeder
    stdout: Collector
    stderr: Collector

    def close(self) -> None:
        """Closes its pipes."""
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()


class KeptSandbox(FileOperations):
    """A sandbox of a keeper.

    Args:
        client: the keeper.
        box: its number in the keeper.
        work: its work directory, as its commands see it.
    """

    def __init__(self, client: KeeperClient, box: int, work: str, limits: SandboxLimits) -> None:
        self.client, self.box, self.work, self.limits = client, box, work, limits
        self.ready: list[Shell] = []
        self.stopped = False

    async def prepare(self) -> None:
        """Starts the process of the agent's next `exec` in advance."""
        self._check_open()
        shell = await self._spawn(SandboxUser.AGENT)
        if self.stopped:
            shell.close()
            self._check_open()
        self.ready.append(shell)

    async def exec(self, command: Command) -> ExecResult:
        """Runs a command; see the contract."""
        self._check_open()
        script = self._script(command)
        limits = command.limits or self.limits
        shell = await self._shell_of(command.user)
        try:
            return await self._run(shell, script, command.stdin, limits)
        except asyncio.CancelledError:
            self.client.kill(shell.number)
            raise
        finally:
            shell.close()

    async def start(self, command: Command, buffer_bytes: int = 1 << 16) -> StartedProcess:
        """Starts a program that runs beside commands; see the contract."""
        self._check_open()
        check_start(command, buffer_bytes)
        script = self._script(command)
        shell = await self._shell_of(command.user)
        try:
            stdin = await writer(shell.stdin.detach())
            self._check_open()
            if shell.ended.done():
                raise SandboxFault(f"the sandbox did not start the process: {shell.ended.result()['error']}")
            self.client.run(shell.number, script, command.limits or self.limits)
        except BaseException:
            self.client.kill(shell.number)
            shell.close()
            raise
        outputs = Stream(shell.stdout.detach(), buffer_bytes), Stream(shell.stderr.detach(), buffer_bytes)
        send, kill = partial(self.client.signal, shell.number), partial(self.client.kill, shell.number)
        return StartedProcess(shell.ended, stdin, outputs, send, kill)

    async def _shell_of(self, user: SandboxUser) -> Shell:
        return self.ready.pop() if self.ready and user is SandboxUser.AGENT else await self._spawn(user)

    async def _spawn(self, user: SandboxUser) -> Shell:
        (stdin, our_in), (our_out, stdout), (our_err, stderr) = os.pipe(), os.pipe(), os.pipe()
        feeder, out, err = Feeder(our_in), Collector(our_out), Collector(our_err)
        try:
            number, ended = await self.client.spawn(self.box, user, [stdin, stdout, stderr])
        except BaseException:
            for stream in (feeder, out, err):
                stream.close()
            raise
        return Shell(number, ended, feeder, out, err)

    async def _run(self, shell: Shell, script: str, stdin: bytes, limits: SandboxLimits) -> ExecResult:
        killed: list[CommandStatus] = []

        def kill(outcome: CommandStatus) -> None:
            if not killed:
                killed.append(outcome)
                self.client.kill(shell.number)

        start = time.perf_counter()
        for stream in (shell.stdout, shell.stderr):
            stream.start(limits.output_bytes, lambda: kill(CommandStatus.OUTPUT_LIMIT))
        self.client.run(shell.number, script, limits)
        shell.stdin.start(stdin)
        timer = self.client.loop.call_later(limits.wall_seconds, kill, CommandStatus.TIMEOUT)
        try:
            end = await asyncio.shield(shell.ended)
        finally:
            timer.cancel()
        out, err = shell.stdout.finish(), shell.stderr.finish()
        seconds = time.perf_counter() - start
        if self.stopped:
            raise SandboxError("the sandbox was stopped while a command ran")
        if end["error"]:
            raise SandboxFault(end["error"])
        if end["code"] is None and not killed and not end["kills"]:
            raise SandboxFault(f"the sandbox did not start: {err.decode(errors='replace').strip()[-2000:]}")
        outcome, code = classify(end["code"], end["kills"], killed)
        return ExecResult(outcome, code, out, err, seconds)

    def _script(self, command: Command) -> str:
        """Returns a shell script that executes the command."""
        for name in command.env:
            if not name.isidentifier() or not name.isascii():
                raise SandboxError(f"env: {name!r} is not a valid variable name")
        exports = [f"export {name}={shlex.quote(value)}" for name, value in command.env.items()]
        directory = shlex.quote(self.locate(command.cwd))
        if any(0xD800 <= ord(sign) < 0xE000 for text in (*command.argv, *command.env.values()) for sign in text):
            raise SandboxError("argv and env: must be text without lone surrogates")
        script = "\n".join([f"cd {directory} || exit 127", *exports, f"exec {shlex.join(command.argv)}"])
        if not command.argv or "\0" in script:
            raise SandboxError("argv: must name a program and contain no NUL")
        if len(script.encode()) > SCRIPT_BYTES:
            raise SandboxError(f"argv and env: must be at most {SCRIPT_BYTES} bytes; write a file or pass it as stdin")
        return script

    def locate(self, path: str) -> str:
        """Returns a path as a command of this sandbox sees it."""
        relative = path.removeprefix(WORKSPACE).lstrip("/") if f"{path}/".startswith(f"{WORKSPACE}/") else path
        return os.path.join(self.work, relative) if relative else self.work

    async def snapshot(self, target: Path) -> None:
        """Copies the work directory into the new directory `target`."""
        self._check_open()
        await self.client.ask("copy", box=self.box, target=str(target.absolute()))

    async def stop(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        for shell in self.ready:
            shell.close()
        if self.client.lost is None:
            await self.client.ask("close", box=self.box)

    def _check_open(self) -> None:
        if self.stopped:
            raise SandboxError("the sandbox has been stopped")


def classify(code: int | None, kills: int, killed: list[CommandStatus]) -> tuple[CommandStatus, int | None]:
    """Returns how a command ended; reads 128 + n as signal n, as shells do, because nothing else is reported."""
    if killed:
        return killed[0], None
    if kills and code != 0:
        return CommandStatus.OUT_OF_MEMORY, None
    assert code is not None
    return (CommandStatus.SIGNAL, code - 128) if 128 < code < 128 + 65 else (CommandStatus.EXIT, code)


class KeptBackend(ABC):
    """A backend whose sandboxes a keeper owns; the keeper starts with the first sandbox.

    A subclass defines `name`, `views`, `forwards`, `requirements`, `gaps`, `describe` and `facts`.
    """

    name: str
    views: tuple[str, ...] | None
    forwards: bool

    def __init__(self, config: LocalSandboxConfig) -> None:
        self.config = config
        self.limits = limits_of(config)
        self.client: KeeperClient | None = None
        self.starting = asyncio.Lock()
        self.boxes = itertools.count()

    def keeper_config(self) -> dict[str, Any]:
        """Returns the keeper's configuration; raises `SandboxError` if the machine lacks a requirement."""
        if sys.platform != "linux":
            raise SandboxError(f"{self.name} needs Linux, this is {sys.platform}")
        return {
            "way": self.name,
            **self.requirements(),
            "read_only": visible(self.config.read_only),
            "cgroups": [[p.folder, p.version, p.controllers] for p in find_parents(self.config.cgroup)],
        }

    @abstractmethod
    def requirements(self) -> dict[str, Any]:
        """Returns the keeper's further settings; raises `SandboxError` if the machine lacks a requirement."""

    @abstractmethod
    def gaps(self) -> tuple[str, ...]:
        """Returns the limits that are weaker here than the contract requires."""

    @abstractmethod
    def describe(self) -> str:
        """Returns the result of a successful probe, in words."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Returns the properties of this machine that the backend needs."""

    def probe(self) -> SandboxProbe:
        """Runs a program in a sandbox of a temporary keeper."""
        with ThreadPoolExecutor(1) as threads:  # the caller may be on an event loop
            return threads.submit(asyncio.run, self._try()).result()

    async def _try(self) -> SandboxProbe:
        trial = type(self)(self.config)
        try:
            async with trial:
                sandbox = await trial.open()
                gaps = (*self.gaps(), *sandbox.client.gaps)
                done = await sandbox.exec(Command(("/bin/sh", "-c", "echo ok")))
            if done.stdout != b"ok\n":
                raise SandboxError(
                    f"a trial ended with {done.outcome.value} {done.code}: {done.stderr.decode(errors='replace')}"
                )
            return SandboxProbe(True, self.describe(), gaps, self.facts())
        except Exception as error:  # on any error, untrusted code must not run here
            return SandboxProbe(False, str(error), facts=self.facts())

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
    ) -> KeptSandbox:
        """Returns a fresh sandbox."""
        limits = limits or self.limits
        shown = self.config.read_only
        view = view_of(layers, folders, verifier_folders, workdir, self.name, self.views, shown)
        if base is not None and not base.is_dir():
            raise SandboxError(f"base {base} is not a directory")
        if forward and not self.forwards:
            raise SandboxError(f"forward: {self.name} has no network of its own; must be bubblewrap or docker")
        ports = checked(forward or {})
        async with self.starting:
            if (
                self.client is not None and self.client.lost is not None
            ):  # the keeper was killed, and its sandboxes with it
                await self.close()
            if self.client is None:
                self.client = client = await self._keeper()
                for gap in (*self.gaps(), *client.gaps):
                    log.warning("sandbox %s: %s", self.name, gap)
        number = next(self.boxes)
        base_path = None if base is None else str(base.absolute())
        answer = await self.client.ask(
            "open", box=number, disk=limits.disk_bytes, base=base_path, forward=ports, view=asdict(view)
        )
        return KeptSandbox(self.client, number, view.workdir if self.views is not None else answer["work"], limits)

    async def _keeper(self) -> KeeperClient:
        """Returns a keeper that is ready; another one if the first is not ready in time, or was killed."""
        client = KeeperClient(self.keeper_config())
        try:
            await client.start()
        except SandboxFault as fault:
            log.warning("sandbox %s: %s; it is started once more", self.name, fault)
            client = KeeperClient(self.keeper_config())
            await client.start()
        return client

    async def close(self) -> None:
        """Ends every sandbox."""
        if self.client is not None:
            client, self.client = self.client, None
            await client.stop()

    async def __aenter__(self) -> KeptBackend:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def checked(forward: Mapping[int, Path]) -> dict[int, str]:
    """Returns forwarded ports with absolute paths.

    Raises:
        SandboxError: a port is none, or a path is not a Unix socket.
    """
    for port, path in forward.items():
        if not 0 < port < 1 << 16:
            raise SandboxError(f"forward: port {port} must be 1 to 65535")
        if not path.is_socket():
            raise SandboxError(f"forward: {path} for port {port} is not a Unix socket of this machine")
    return {port: str(path.absolute()) for port, path in forward.items()}


def memory_gap(cgroup: str | None) -> tuple[str, ...]:
    """Returns the gap where no control group limits memory."""
    if any("memory" in parent.controllers for parent in find_parents(cgroup)):
        return ()
    return (
        "memory is limited per process and not in total, what is written to memfd, System V memory and sockets not at "
        "all, and an out-of-memory kill looks like any other: no control group with the memory controller can be "
        "created here",
    )


def limits_of(config: SandboxConfig) -> SandboxLimits:
    """Returns the limits in a sandbox's config."""
    return SandboxLimits(
        cpu_seconds=config.cpu_seconds,
        wall_seconds=config.wall_seconds,
        memory_bytes=config.memory_mb << 20,
        processes=config.processes,
    )


def visible(chosen: list[str]) -> list[str]:
    """Returns the host paths that commands may read in addition to the system's, as real paths."""
    for path in chosen:
        if not os.path.isabs(path) or not os.path.exists(path):
            raise SandboxError(f"read_only: {path} must be an absolute path that exists")
    return list(chosen)
