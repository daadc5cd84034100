"""An engine's process, from the outside.

Processes are forked from one that has imported torch and the server already, so that an engine which replaces a dead
one is there as soon as its weights are read.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from arcforge_core.errors import ArcforgeError
from arcforge_serving.configs import ServeConfig
from arcforge_serving.disaggregation.wiring import Wiring
from arcforge_serving.router.start import run_engine

IMPORTED = ["arcforge_serving.router.engine"]


class EngineError(ArcforgeError):
    """An engine did not start."""


class Process(Protocol):
    """One life of an engine.

    Attributes:
        socket: path of the Unix socket that it listens on.
        life: its name among all lives of all engines, ``NUMBER-COUNT``.
        key: lets the router in.
        upload_bytes: largest upload of weights that it takes; known once it is ready.
    """

    socket: str
    life: str
    key: str
    upload_bytes: int

    async def start(self) -> None:
        """Starts it, and waits until it listens.

        Raises:
            EngineError: it cannot.
        """

    async def ended(self) -> None:
        """Waits for its end."""

    def stop(self) -> None:
        """Asks it to end in order; without effect on one that has ended."""

    def kill(self) -> None:
        """Kills it; without effect on one that has ended."""


Launch = Callable[[int], Process]
"""Makes an engine's next life, by the engine's number."""


class EngineProcess:
    """A `Process` of this machine.

    Args:
        config: of the whole server.
        socket: where it shall listen; the file's name is its life's.
        spent: called with a holder of a key and a number of tokens.
        wiring: of its role.
        load: builds the server's state in the process; a module-level function. None loads the checkpoint.
    """

    def __init__(
        self,
        config: ServeConfig,
        socket: Path,
        spent: Callable[[str, int], None],
        wiring: Wiring | None = None,
        load: Callable[[ServeConfig], Any] | None = None,
    ) -> None:
        self.socket, self.life, self.key, self.upload_bytes = str(socket), socket.name, secrets.token_urlsafe(), 0
        self._config, self._spent = config, spent
        self._further = (wiring,) if load is None else (wiring, load)
        self._process: Any = None

    async def start(self) -> None:
        """Starts it, and waits until it listens."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        ours, theirs = context.Pipe()
        self._pipe = ours  # its end tells the engine that we are gone
        arguments = (self._config, self.socket, self.key, theirs, *self._further)
        self._process = context.Process(target=run_engine, args=arguments)  # by name: it imports torch, we do not
        try:
            await asyncio.to_thread(self._process.start)  # the first one waits for the imports
        finally:
            theirs.close()
        try:
            word, value = await asyncio.to_thread(ours.recv)
        except (EOFError, OSError) as error:
            self.kill()
            raise EngineError("an engine's process ended before it listened") from error
        if word == "failed":
            raise EngineError(value)
        self.upload_bytes = value
        asyncio.get_running_loop().add_reader(ours, self._hear)

    def _hear(self) -> None:
        """Passes on what the engine says of tokens, until it ends."""
        try:
            while self._pipe.poll():
                self._spent(*self._pipe.recv())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe)
            self._pipe.close()

    async def ended(self) -> None:
        """Waits for its end."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        sentinel = self._process.sentinel
        loop.add_reader(sentinel, event.set)
        try:
            await event.wait()
        finally:
            loop.remove_reader(sentinel)

    def stop(self) -> None:
        """Asks it to end in order."""
        if self._process is not None and self._process.pid is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
