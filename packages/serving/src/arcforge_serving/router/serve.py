"""Serves several engines: starts them, and routes requests until it is stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from multiprocessing.util import get_temp_dir
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from arcforge_core.console.progress import say
from arcforge_core.errors import ConfigError
from arcforge_core.garbage import SERVER, frozen_garbage
from arcforge_serving.configs import ServeConfig
from arcforge_serving.disaggregation.wiring import Wiring, wired
from arcforge_serving.router.app import create_router
from arcforge_serving.router.fleet import Fleet
from arcforge_serving.router.policies import build_policy
from arcforge_serving.router.process import EngineProcess, Process
from arcforge_serving.server.gate.connections import connection_options
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.gate.listening import listen, listen_unix, url
from arcforge_serving.server.gate.logs import log_config

SECONDS_TO_SEND = 5.0
"""Beyond what requests are given to end, for engines and clients."""
LONGEST, NAME = 88, 14
"""Characters of the folder in which sockets lie, with their names Linux takes 107; and of its own name."""


def serve_fleet(config: ServeConfig) -> None:
    """Serves until SIGINT (exit code 0) or SIGTERM; running requests may finish within ``shutdown_seconds``.

    Raises:
        ConfigError: the address cannot be listened on, or not without a key; a key cannot be used.
        EngineError: an engine does not start; it has said why.
    """
    guard = Guard.of(config, os.environ)
    folder = get_temp_dir()  # where processes are started through sockets too; it goes at exit
    if len(folder) > LONGEST:
        accepted = f"sockets of the engines lie below it: use at most {LONGEST - NAME} characters"
        raise ConfigError("TMPDIR", tempfile.gettempdir(), accepted)
    keys = bool(guard.keys.users)
    with (
        listen(config.host, config.port, keys=keys) as listener,
        listen_unix(config.unix_socket) as further,
        wired(config.dp, config.prefill) as wirings,
        frozen_garbage(SERVER),
    ):
        try:
            asyncio.run(_serve(config, guard, [listener, *further], Path(folder), wirings))
        except KeyboardInterrupt:  # uvicorn has shut down in order and passes the signal on
            say("stopped")


async def _serve(
    config: ServeConfig, guard: Guard, listeners: list[socket.socket], folder: Path, wirings: Sequence[Wiring | None]
) -> None:
    lives = 0

    def launch(number: int) -> Process:
        nonlocal lives
        lives += 1
        return EngineProcess(config, folder / f"{number}-{lives}", guard.rates.spend, wirings[number])

    fleet = Fleet(config.router, config.dp, build_policy(config.router), launch, config.prefill)
    options = {**connection_options(config), "log_config": log_config(config.log)}
    server = RouterServer(fleet, guard, folder, config.shutdown_seconds, **options)
    await fleet.start()
    try:
        engines = f"{config.dp} engines" + f" and {config.prefill} for prompts" * bool(config.prefill)
        print(f"{engines} at {url(listeners[0])}/v1/completions; Ctrl-C stops", flush=True)
        await server.serve(sockets=listeners)
    finally:
        await fleet.stop(config.shutdown_seconds + SECONDS_TO_SEND)


class RouterServer(uvicorn.Server):
    """Serves a router; when it is stopped, the engines finish or abort their requests.

    Args:
        fleet: the engines.
        guard: keys, limits and rates.
        folder: for uploads.
        shutdown_seconds: how long running requests may continue.
        log_level: of uvicorn.
        options: further options of uvicorn.
    """

    def __init__(
        self,
        fleet: Fleet,
        guard: Guard,
        folder: Path,
        shutdown_seconds: float,
        log_level: str = "warning",
        **options: Any,
    ) -> None:
        app = create_router(fleet, guard, folder)
        # longer than the engines, which end what they have first
        cut_off = round(shutdown_seconds + 2 * SECONDS_TO_SEND)
        super().__init__(
            uvicorn.Config(app, log_level=log_level, timeout_graceful_shutdown=cut_off, lifespan="off", **options)
        )
        self._fleet, self._seconds, self._state = fleet, shutdown_seconds + SECONDS_TO_SEND, app.state.router
        self.counts, self._folder, self._terminated = app.state.router.counts, folder, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes which signal it was."""
        self._terminated = sig == signal.SIGTERM
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more requests; engines let running ones continue for a while, and abort the rest."""
        self._state.closing = True
        stopping = asyncio.create_task(self._fleet.stop(self._seconds))
        await super().shutdown(sockets)
        await stopping
        if self._terminated:  # the signal is passed on next, and leaves no time for it
            shutil.rmtree(self._folder, ignore_errors=True)
