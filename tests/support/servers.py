"""Servers of small models for tests: in this process, and on a port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from torch import Tensor

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.engine.stream import Stream
from arcforge_serving.server.app import create_app
from arcforge_serving.server.gate.connections import connection_options
from arcforge_serving.server.gate.listening import listen, listen_unix, url
from arcforge_serving.server.serve import Server, state_of
from arcforge_serving.server.shared.state import ServerState

LOCAL = "http://localhost"
"""A name that servers on loopback answer to."""


def small_state(tokenizer: Tokenizer, model: CausalLM | None = None, **options: Any) -> ServerState:
    """Returns the state of a server of the model ``small``, with an engine of its own.

    Args:
        tokenizer: of the model.
        model: a new one of 1024 positions when None.
        options: of the engine.
    """
    model = model or small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=1024)
    return state_of(PagedEngine(PagedEngineConfig(**options), model), tokenizer, "small")


class Says:
    """A `Matcher` that lets a model say one thing alone.

    Args:
        ids: what; the last of them ends the sequence.
        vocabulary: ids of the model.
        seconds: what each token takes.
        holds: events that it waits for, by the number of ids that are left then.
    """

    def __init__(
        self, ids: Sequence[int], vocabulary: int, seconds: float, holds: Mapping[int, threading.Event] | None = None
    ) -> None:
        self._left, self._vocabulary, self._seconds, self._holds = list(ids), vocabulary, seconds, holds or {}

    def allowed(self) -> Tensor:
        """Returns bool [V]: the next id."""
        time.sleep(self._seconds)
        if (hold := self._holds.get(len(self._left))) is not None:
            hold.wait(60)
        return torch.arange(self._vocabulary) == self._left[0]

    def accept(self, token: int) -> None:
        """Moves to the next place."""
        self._left.pop(0)

    @property
    def finished(self) -> bool:
        """Whether all is said."""
        return not self._left


class ScriptedPagedEngine(PagedEngine):
    """Computes as ever, and says what a function of the prompt's text tells it; special tokens are written out.

    Attributes:
        script: the function.
        seconds: what each token takes besides.
        prompts: texts of those that came.
        holds: events that it waits for, by the part of an answer that comes after the wait.
    """

    script: Callable[[str], str]
    tokenizer: Tokenizer
    seconds = 0.0
    prompts: list[str]
    holds: Mapping[str, threading.Event] = {}

    def submit(self, prompt: Sequence[int], params: SamplingParams, **further: Any) -> list[Stream]:
        """Queues a request; see `PagedEngine.submit`."""
        self.prompts.append(self.tokenizer.decode(list(prompt)))
        text = self.script(self.prompts[-1])
        ids = self.tokenizer.encode(text, allow_special=True)
        before = {part: self.tokenizer.encode(text[: text.index(part)], allow_special=True) for part in self.holds}
        holds = {len(ids) - len(before[part]): hold for part, hold in self.holds.items()}
        matcher = partial(Says, ids, self.model.config.vocab_size, self.seconds, holds)
        return super().submit(prompt, replace(params, matcher=matcher), **further)


def scripted_state(
    tokenizer: Tokenizer, script: Callable[[str], str], name: str = "small", positions: int = 8192, **options: Any
) -> ServerState:
    """Returns the state of a server whose model says what a script tells it.

    Args:
        tokenizer: of the script.
        script: the prompt's text, special tokens written out, to that of the answer.
        name: the model's.
        positions: of the model, and tokens of its cache.
        options: of the engine.
    """
    model = small_model(vocab_size=tokenizer.vocab_size, max_position_embeddings=positions)
    options.setdefault(
        "cache_tokens", positions
    )  # FastAPI keeps a hundred endpoints of past tests, and with them engines
    engine = ScriptedPagedEngine(PagedEngineConfig(**options), model)
    engine.script, engine.tokenizer, engine.prompts = script, tokenizer, []
    return state_of(engine, tokenizer, name)


@contextmanager
def client_of(state: ServerState, app: FastAPI | None = None) -> Iterator[TestClient]:
    """Yields a client of an application in this process."""
    with TestClient(app or create_app(state), LOCAL, raise_server_exceptions=False) as client:
        yield client


@contextmanager
def listening(
    state: ServerState,
    shutdown_seconds: float = 5.0,
    app: FastAPI | None = None,
    unix: str | None = None,
    port: int = 0,
) -> Iterator[tuple[Server, str]]:
    """Yields a server on a port and on a Unix socket if one is named, in a thread of its own, and its URL."""
    options = connection_options(ServeConfig(PagedEngineConfig()))  # clients keep connections as with the real one
    server = Server(state, shutdown_seconds, log_level="error", app=app, **options)
    with listen("127.0.0.1", port) as socket, listen_unix(unix) as named:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket, *named]})
        thread.start()
        try:
            yield server, url(socket)
        finally:
            server.should_exit = True
            thread.join()
