"""Serves one engine: loads a checkpoint and listens until it is stopped."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from arcforge_core.chat.load import build_chat_template
from arcforge_core.checkpoint.pretrained import find_checkpoint, load_with_tokenizer, open_checkpoint
from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.checkpoint.scalar import HEAD
from arcforge_core.console.progress import say
from arcforge_core.contracts.serving_engine import ServingEngine
from arcforge_core.errors import ConfigError
from arcforge_core.garbage import SERVER, frozen_garbage
from arcforge_core.generation.engine import build_engine, check_engine
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.configs import ServeConfig
from arcforge_serving.server.app import create_app
from arcforge_serving.server.gate.connections import connection_options
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.gate.listening import listen, listen_unix, url
from arcforge_serving.server.gate.logs import log_config
from arcforge_serving.server.shared.lesson import Lesson
from arcforge_serving.server.shared.memories import Memories
from arcforge_serving.server.shared.response_store import ResponseStore
from arcforge_serving.server.shared.starters import read_starters
from arcforge_serving.server.shared.state import ServerState

SECONDS_TO_SEND = 5.0
"""For slow clients to receive the ends of their streams."""


def serve(config: ServeConfig, make_app: Callable[[ServerState], FastAPI] = create_app) -> None:
    """Serves until SIGINT (exit code 0) or SIGTERM; running requests may finish within ``shutdown_seconds``.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigError: the address cannot be listened on, or not without a key; a key or folder cannot be used; sizes do
            not fit the number format of the weights.
    """
    guard = Guard.of(config, os.environ)
    weights_root(config)
    listener = listen(config.host, config.port, keys=bool(guard.keys.users))
    with listener, listen_unix(config.unix_socket) as further:
        state = load_state(config)
        if state.template is None:
            say(f"no chats: {state.no_template}")
        print(f"{state.name} at {url(listener)} in a browser, {url(listener)}/v1 for clients; Ctrl-C stops", flush=True)
        options = {**connection_options(config), "log_config": log_config(config.log)}
        server = Server(state, config.shutdown_seconds, app=make_app(state), **options)
        try:
            with frozen_garbage(SERVER):
                server.run(sockets=[listener, *further])
        except KeyboardInterrupt:  # uvicorn has shut down in order and passes the signal on
            say("stopped")


def load_state(config: ServeConfig) -> ServerState:
    """Loads the checkpoint and the engine of a configuration.

    Raises:
        CheckpointError, ConfigError: see `serve`.
    """
    guard, root = Guard.of(config, os.environ), weights_root(config)
    folder = find_checkpoint(config.checkpoint)
    starters = read_starters(folder)
    name = config.served_name or folder.resolve().name
    checkpoint = open_checkpoint(folder)
    check_engine(config.engine, checkpoint.config, checkpoint.attention)
    hardware = build_hardware(config.hardware)
    model, tokenizer = load_with_tokenizer(folder, hardware, config.deterministic, config.dtype)
    engine = cast(ServingEngine, build_engine(config.engine, model))  # the config has checked that it is one
    state = state_of(engine, tokenizer, name)
    state.guard, state.weights_root, state.starters = guard, root, starters
    if (folder / HEAD).is_file():
        state.reward = RewardModel(folder, Ops(hardware, config.deterministic), "checkpoint")
        say(f"{state.name} is a reward model: POST /pooling scores conversations")
    if config.lesson:
        state.lesson = Lesson(config.lesson, engine.update_weights_from)
    state.share_prefixes = config.share_prefixes
    state.owners = "owner" not in getattr(engine, "unsupported", ())
    state.token_id_style, state.responses = config.token_id_style, ResponseStore(Memories(config.responses_mb * 2**20))
    return state


def state_of(engine: ServingEngine, tokenizer: Tokenizer, name: str) -> ServerState:
    """Returns the state of a server, with the tokenizer's chat template if it has a usable one."""
    try:
        return ServerState(engine, tokenizer, name, build_chat_template(tokenizer))
    except ConfigError as error:
        return ServerState(engine, tokenizer, name, None, str(error))


class Server(uvicorn.Server):
    """Serves an application, and ends its streams properly when it is stopped.

    Args:
        state: the engine, the tokenizer and the settings.
        shutdown_seconds: how long running requests may continue.
        log_level: of uvicorn.
        app: None is `create_app`'s.
        options: further options of uvicorn.
    """

    def __init__(
        self,
        state: ServerState,
        shutdown_seconds: float,
        log_level: str = "warning",
        app: FastAPI | None = None,
        **options: Any,
    ) -> None:
        cut_off = round(shutdown_seconds + SECONDS_TO_SEND)
        app = app or create_app(state)
        super().__init__(uvicorn.Config(app, log_level=log_level, timeout_graceful_shutdown=cut_off, **options))
        self._state, self._shutdown_seconds = state, shutdown_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more requests, lets running ones continue for `shutdown_seconds`, then aborts the rest."""
        self._state.closing = True
        ending = asyncio.create_task(self._abort_later())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _abort_later(self) -> None:
        await asyncio.sleep(self._shutdown_seconds)
        if self._state.engine.alive:
            await asyncio.to_thread(self._state.engine.abort)


def weights_root(config: ServeConfig) -> Path | None:
    """Returns the folder below which weight updates may be read.

    Raises:
        ConfigError: it does not exist.
    """
    if config.weights_root is None:
        return None
    root = Path(config.weights_root)
    if not root.is_dir():
        raise ConfigError("weights_root", config.weights_root, "must be a folder")
    return root.resolve()
