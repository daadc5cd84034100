"""An engine's process, from the outside.

Processes are forked from one that has imported torch and the server already, so that an engine which replaces a dead
one is there as soon as its weights are read.
"""

from __future__ import annotations

import asyncio
import multiprocessing
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
        upload_bytes: largest upload of weights that it takes; known once it is ready.
    """

    socket: str
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
        """Ends it at once; without effect on one that has ended."""


Launch = Callable[[int], Process]
"""Makes an engine's next life, by the engine's number."""


class EngineProcess:
    """A `Process` of this machine.

    Args:
        config: of the whole server.
        socket: where it shall listen.
        wiring: of its role.
        load: makes what is served, there; a function that is found by its name. None loads the checkpoint.
    """

    def __init__(
        self,
        config: ServeConfig,
        socket: Path,
        wiring: Wiring | None = None,
        load: Callable[[ServeConfig], Any] | None = None,
    ) -> None:
        self.socket, self.upload_bytes = str(socket), 0
        self._config, self._further = config, (wiring,) if load is None else (wiring, load)
        self._process: Any = None

    async def start(self) -> None:
        """Starts it, and waits until it listens."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        ours, theirs = context.Pipe()
        self._pipe = ours  # its end tells the engine that we are gone
        arguments = (self._config, self.socket, theirs, *self._further)
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
        """Ends it at once."""
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
