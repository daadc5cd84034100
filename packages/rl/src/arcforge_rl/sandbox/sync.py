"""Sandboxes for code that is not asynchronous, and for other event loops: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Protocol, TypeVar

from arcforge_core.config.schema import SandboxConfig
from arcforge_core.contracts.sandbox import Command, ExecResult, Sandbox, SandboxBackend, SandboxFault
from arcforge_rl.configs.commands import AutoSandboxConfig, LocalSandboxConfig
from arcforge_rl.sandbox.python import python_inside
from arcforge_rl.sandbox.select import build_sandboxes

T = TypeVar("T")
_ENTERING = threading.Lock()
ATTEMPTS = 2
"""Attempts at work whose sandbox breaks."""


class Bench(Protocol):
    """Where tools run: a desk, or one of its places."""

    @property
    def python(self) -> str:
        """Path of the interpreter inside."""

    def run(self, command: Command) -> ExecResult:
        """Runs a command."""

    def clear(self) -> None:
        """Ends the sandbox and deletes its files."""


@dataclasses.dataclass(frozen=True)
class Place:
    """An additional sandbox of a desk."""

    desk: Desk
    sandbox: Sandbox

    @property
    def python(self) -> str:
        """Returns the path of the interpreter inside."""
        return self.desk.python

    def lay(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            self.desk._do(self.sandbox.write(path, text.encode()))

    def run(self, command: Command) -> ExecResult:
        return self.desk._do(self.sandbox.exec(command))

    def clear(self) -> None:
        self.desk._do(self.sandbox.stop())


class Desk:
    """One fresh sandbox at a time; used as ``with Desk(...) as desk:``.

    Attributes:
        python: path of the interpreter inside.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        """Builds the backend; nothing is started before the block is entered.

        Args:
            config: the backend; ``auto`` when None; the interpreter's paths are added.

        Raises:
            ConfigError: untrusted code cannot be run here.
        """
        self.python, shown = python_inside()
        config = config or AutoSandboxConfig()
        if isinstance(config, LocalSandboxConfig):
            config = dataclasses.replace(config, read_only=[*config.read_only, *shown])
        self._backend = build_sandboxes(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="arcforge-desk", daemon=True)
        self._place: Place | None = None

    def __enter__(self) -> Desk:
        self._thread.start()
        self._do(self._backend.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        self._do(self._backend.__aexit__(kind, error, trace))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def clear(self) -> None:
        """Ends the current sandbox; the next command gets a fresh one."""
        if self._place is not None:
            self._place.clear()
            self._place = None

    def lay(self, files: Mapping[str, str]) -> None:
        """Writes files into the current sandbox."""
        if files:
            self._open().lay(files)

    def run(self, command: Command) -> ExecResult:
        """Runs a command in the current sandbox."""
        return self._open().run(command)

    async def do(self, work: Callable[[SandboxBackend], Coroutine[Any, Any, T]]) -> T:
        """Awaits work with the backend, on the backend's event loop; no thread is blocked meanwhile."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(self._backend), self._loop))

    def wait(self, work: Callable[[SandboxBackend], Coroutine[Any, Any, T]]) -> T:
        """Returns what `retry` awaits; this thread is blocked meanwhile.

        Raises:
            SandboxFault: a sandbox broke, `ATTEMPTS` times.
        """
        return self._do(_attempts(work, self._backend))

    async def retry(self, work: Callable[[SandboxBackend], Coroutine[Any, Any, T]]) -> T:
        """Awaits work as `do` does, from its beginning once more if a sandbox breaks.

        Raises:
            SandboxFault: a sandbox broke, `ATTEMPTS` times.
        """
        return await self.do(functools.partial(_attempts, work))

    def place(self) -> Place:
        """Opens a sandbox that lasts until it is cleared or the block ends."""
        return Place(self, self._do(self._backend.open()))

    def _open(self) -> Place:
        if self._place is None:
            self._place = self.place()
        return self._place

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _attempts(work: Callable[[SandboxBackend], Coroutine[Any, Any, T]], backend: SandboxBackend) -> T:
    for _ in range(ATTEMPTS - 1):
        try:
            return await work(backend)
        except SandboxFault:
            continue
    return await work(backend)


def shared_desk() -> Desk:
    """Returns the desk shared by this process's environments and checkers; its keeper dies with the process.

    Raises:
        ConfigError: untrusted code cannot be run here.
    """
    with _ENTERING:  # several threads may ask first
        return _shared_desk()


@functools.cache
def _shared_desk() -> Desk:
    return Desk().__enter__()
