"""Where an agent's program runs: a folder of the host, or a sandbox that reaches the gateway alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.contracts.sandbox import (
    WORKSPACE,
    Command,
    Process,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFault,
)
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.agents import CommandHarnessConfig, SandboxedHarnessConfig
from arcforge_rl.configs.commands import AutoSandboxConfig
from arcforge_rl.sandbox.select import build_sandboxes

LONGEST = 1 << 20
"""Bytes of an answer, of each file, and kept of a stream."""
PORT = 8000
"""Inside a sandbox, that of the gateway."""
INHERITED = ("PATH", "LANG")
"""Variables that a program on the host gets from this process."""


class Running(Protocol):
    """A program."""

    @property
    def stdout(self) -> asyncio.StreamReader: ...

    @property
    def stderr(self) -> asyncio.StreamReader: ...

    async def wait(self) -> str:
        """Returns how it crashed; an empty text after exit code 0."""

    def kill(self) -> None:
        """Kills it and all that it started; nothing if it has ended."""


class Place(Protocol):
    """A work directory, and programs that start there.

    Attributes:
        workdir: its path, as the program sees it.
        gateway: address of the gateway there; empty for the same as here.
    """

    workdir: str
    gateway: str

    async def start(self, argv: Sequence[str], variables: Mapping[str, str]) -> Running:
        """Starts a program with these environment variables.

        Raises:
            EpisodeFailure: it cannot be started.
        """

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file."""

    async def read(self, path: str) -> bytes | None:
        """Returns a regular file of at most `LONGEST` bytes; None if there is no such one."""

    async def close(self) -> None:
        """Removes everything."""


class HostPlace:
    """A folder of the host for a program that is trusted."""

    gateway = ""

    def __init__(self) -> None:
        self.workdir = os.path.realpath(tempfile.mkdtemp(prefix="arcforge-agent-"))

    async def start(self, argv: Sequence[str], variables: Mapping[str, str]) -> Running:
        """Starts a program in a process group of its own; its home is the work directory."""
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self.workdir,
                env={**inherited, "HOME": self.workdir, **variables},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise EpisodeFailure("worker", f"{argv[0]} cannot be started: {error}") from error
        return HostProgram(process)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file."""
        (Path(self.workdir) / path).write_bytes(data)

    async def read(self, path: str) -> bytes | None:
        """Reads a file; one that a link leads to outside is none."""
        found = (Path(self.workdir) / path).resolve()
        if Path(self.workdir) not in found.parents or not found.is_file() or found.stat().st_size > LONGEST:
            return None
        return found.read_bytes()

    async def close(self) -> None:
        """Removes the folder."""
        await asyncio.to_thread(shutil.rmtree, self.workdir, ignore_errors=True)


@dataclass(frozen=True)
class HostProgram:
    """A process group."""

    process: asyncio.subprocess.Process

    @property
    def stdout(self) -> asyncio.StreamReader:
        """Its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        """Its standard error."""
        assert self.process.stderr is not None
        return self.process.stderr

    async def wait(self) -> str:
        """Waits for the first process."""
        code = await self.process.wait()
        return f"exit code {code}" if code > 0 else f"signal {-code}" if code else ""

    def kill(self) -> None:
        """Kills the group, also when its first process has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def sandboxes_of(config: SandboxedHarnessConfig, seconds: float | None = None) -> SandboxBackend:
    """Returns the sandboxes of a harness.

    Args:
        config: has the limits.
        seconds: of a command; None: those of a rollout.

    Raises:
        ConfigError: there are none on this machine.
    """
    return build_sandboxes(
        AutoSandboxConfig(
            cpu_seconds=max(1.0, config.seconds),
            wall_seconds=seconds or config.seconds,
            memory_mb=config.memory_mb,
            processes=config.processes,
            read_only=config.read_only,
        )
    )


class SandboxPlaces:
    """Sandboxes in which a port leads to the gateway.

    Raises:
        ConfigError: there are none on this machine.
    """

    def __init__(self, config: CommandHarnessConfig) -> None:
        assert config.gateway_socket is not None
        self.forward = {PORT: Path(config.gateway_socket)}
        self.backend = sandboxes_of(config)
        if not self.backend.forwards:
            accepted = f"must be host: {self.backend.name}, the sandbox that works here, has no port for the gateway"
            raise ConfigError("harness.place", "sandbox", accepted)

    async def open(self) -> Place:
        """Returns a fresh sandbox."""
        return SandboxPlace(await self.backend.open(forward=self.forward), f"http://127.0.0.1:{PORT}")


class SandboxPlace:
    """One sandbox."""

    workdir = WORKSPACE

    def __init__(self, sandbox: Sandbox, gateway: str) -> None:
        self._sandbox, self.gateway = sandbox, gateway

    async def start(self, argv: Sequence[str], variables: Mapping[str, str]) -> Running:
        """Starts a program in the sandbox."""
        process = await self._sandbox.start(Command(tuple(argv), env=variables))
        process.stdin.close()
        return SandboxProgram(process)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file of the sandbox."""
        await self._sandbox.write(path, data)

    async def read(self, path: str) -> bytes | None:
        """Reads a file of the sandbox."""
        try:
            return await self._sandbox.read(path, LONGEST)
        except SandboxFault:
            raise
        except SandboxError:
            return None

    async def close(self) -> None:
        """Ends the sandbox."""
        await self._sandbox.stop()


@dataclass(frozen=True)
class SandboxProgram:
    """A program in a sandbox."""

    process: Process

    @property
    def stdout(self) -> asyncio.StreamReader:
        """Its standard output."""
        return self.process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        """Its standard error."""
        return self.process.stderr

    async def wait(self) -> str:
        """Waits until all its processes have ended."""
        status = await self.process.wait()
        return "" if status.ok else f"{status.outcome} {status.code}"

    def kill(self) -> None:
        """Kills its processes."""
        self.process.kill()
