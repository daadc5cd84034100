"""An engine's process, from the inside: the server of ``dp=1`` on a socket that only its router reaches."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from arcforge_core.errors import ArcforgeError
from arcforge_core.garbage import SERVER, frozen_garbage
from arcforge_serving.configs import ServeConfig
from arcforge_serving.disaggregation.wiring import Wiring
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.server.admin import upload_limit
from arcforge_serving.server.gate.connections import connection_options
from arcforge_serving.server.gate.logs import log_config
from arcforge_serving.server.serve import Server, load_state
from arcforge_serving.server.shared.state import ServerState

Load = Callable[[ServeConfig], ServerState]


def run_engine(
    config: ServeConfig, path: str, key: str, router: Connection, wiring: Wiring | None = None, load: Load = load_state
) -> None:
    """Loads the checkpoint and serves until SIGTERM, or until the router is gone.

    Args:
        config: of the whole server.
        path: of the Unix socket to listen on, which only the router reaches; its name is that of this life.
        key: lets the router in.
        router: receives ``("ready", bytes of the largest upload)`` or ``("failed", message)``, then (holder, tokens)
            if tokens are limited; it closes with the router.
        wiring: of its role, with prefill engines.
        load: builds the server's state.
    """
    os.setsid()  # Ctrl-C is the router's, which ends its engines in order
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // (config.dp + config.prefill)))
    try:
        state = load(config)

        def spent(holder: str, tokens: int) -> None:
            with suppress(OSError):  # the router has gone, and this process is about to
                router.send((holder, tokens))

        limited = config.tokens_per_minute is not None
        state.guard, state.life = state.guard.behind_router(key, spent if limited else None), Path(path).name
        if wiring is not None:
            assert isinstance(state.engine, PagedEngine)  # the only engine that `load_state` builds
            wiring.connect(state.engine)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(2048)  # before the word: a router that connects immediately waits, and is not refused
            options = {**connection_options(config), "log_config": log_config(config.log), "forwarded_allow_ips": "*"}
            server = Server(state, config.shutdown_seconds, **options)
            threading.Thread(target=_end_with, args=(router,), daemon=True).start()
            router.send(("ready", upload_limit(state.engine)))
            with frozen_garbage(SERVER):
                server.run(sockets=[listener])
    except ArcforgeError as error:
        with suppress(OSError):  # it has gone already, because of another engine
            router.send(("failed", str(error)))
        sys.exit(2)


def _end_with(router: Connection) -> None:
    """Ends this process in order when the router does, however that ends."""
    try:
        router.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
