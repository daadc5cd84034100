"""Servers of small models for tests: in this process, and on a port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.testclient import TestClient

from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.paged import PagedEngine
from arcforge_serving.server.app import create_app
from arcforge_serving.server.listening import listen, url
from arcforge_serving.server.run import Server, state_of
from arcforge_serving.server.state import ServerState


def small_state(tokenizer: Tokenizer, model: CausalLM | None = None, **options: Any) -> ServerState:
    """Returns the state of a server of the model ``small``, with an engine of its own.

    Args:
        tokenizer: of the model.
        model: a new one of 1024 positions when None.
        options: of the engine.
    """
    model = model or small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=1024)
    return state_of(PagedEngine(PagedEngineConfig(**options), model), tokenizer, "small")


@contextmanager
def client_of(state: ServerState) -> Iterator[TestClient]:
    """Yields a client of an application in this process."""
    with TestClient(create_app(state), raise_server_exceptions=False) as client:
        yield client


@contextmanager
def listening(state: ServerState, shutdown_seconds: float = 5.0) -> Iterator[tuple[Server, str]]:
    """Yields a server on a port, in a thread of its own, and its URL."""
    server = Server(state, shutdown_seconds, log_level="error")
    with listen("127.0.0.1", 0) as socket:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
        thread.start()
        try:
            yield server, url(socket)
        finally:
            server.should_exit = True
            thread.join()
