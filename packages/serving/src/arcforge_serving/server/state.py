"""What the routes share: one object per application, in ``app.state.server``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from fastapi import Depends, Request

from arcforge_core.config.schema import ModelConfig
from arcforge_core.contracts.chat import ChatTemplate
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_serving.grammar import Grammars
from arcforge_serving.paged import PagedEngine
from arcforge_serving.server.dialects.response_store import ResponseStore
from arcforge_serving.server.guard import Guard

if TYPE_CHECKING:
    from arcforge_serving.server.generation import Generation


class Observer(Protocol):
    """Is told what happens to each sequence, on the server's event loop, by `generation.Generation` alone."""

    def submitted(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """A sequence was handed to the engine."""

    def received(self, tokens: int, seconds: float, first: bool) -> None:
        """Tokens came, so long after the request (the first ones) or after those before."""

    def finished(self, reason: str, seconds: float, output: GenerationOutput | None) -> None:
        """It ended, so long after the request: ``stop``, ``length``, ``abort``, or ``error``, which has no output."""


@dataclass
class ServerState:
    """What an application serves.

    Attributes:
        engine: generates; the application starts and closes it.
        tokenizer: of the model.
        name: the model's, in requests and replies.
        template: renders chats; None when the model has none.
        no_template: why there is none.
        observers: what looks on.
        created: seconds since 1970.
        closing: whether new requests are refused, because the server shuts down.
        guard: who may ask for what.
        weights_root: folder below which updates of the weights may be read; None reads none from folders.
        token_id_style: where chats have the ids of their prompts, ``vllm`` or ``sglang``.
        responses: replies of ``/v1/responses`` that can be gone on from.
        life: of an engine behind a router, which one; ids of kept replies have it.
        open: generations that have not ended, by the ids of their requests.
    """

    engine: PagedEngine
    tokenizer: Tokenizer
    name: str
    template: ChatTemplate | None = None
    no_template: str = ""
    observers: list[Observer] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time.time()))
    closing: bool = False
    guard: Guard = field(default_factory=Guard)
    weights_root: Path | None = None
    token_id_style: str = "vllm"
    responses: ResponseStore = field(default_factory=ResponseStore)
    life: str = ""
    open: dict[str, list[Generation]] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self.engine.model.config

    @property
    def longest(self) -> int:
        """Tokens that prompt and output may have together: what the model's positions and the cache allow."""
        room = self.engine.scheduler.pages.count * self.engine.config.page_size
        return min(self.config.max_position_embeddings, room)

    @cached_property
    def grammars(self) -> Grammars:
        """Makes matchers for structured output."""
        return Grammars(self.tokenizer, self.config.vocab_size)


def server_of(request: Request) -> ServerState:
    """Returns the state of the application that serves a request."""
    state: ServerState = request.app.state.server
    return state


Server = Annotated[ServerState, Depends(server_of)]
"""A route's parameter of this type is the state."""
