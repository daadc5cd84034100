"""State that all routes share: one object per application, in ``app.state.server``."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Protocol

from fastapi import Depends, Request

from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.contracts.chat import ChatTemplate
from arcforge_core.contracts.serving_engine import ServingEngine
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.engine.grammar import Grammars
from arcforge_serving.server.gate.guard import SESSION, Guard
from arcforge_serving.server.shared.lesson import Lesson
from arcforge_serving.server.shared.memories import Memories
from arcforge_serving.server.shared.metrics import Metrics
from arcforge_serving.server.shared.response_store import ResponseStore
from arcforge_serving.server.shared.starters import Starters
from arcforge_serving.server.shared.turns import Cancellable, RenderedTurns, Turns


class Admitted(Turns, Protocol):
    """The turn of a request that a gateway has admitted.

    Attributes:
        owner: of the key that opened its session.
        responses: of the session, in place of the server's.
    """

    @property
    def owner(self) -> str: ...
    @property
    def responses(self) -> ResponseStore: ...


@dataclass
class ServerState:
    """The engine, the tokenizer and the settings of an application.

    Attributes:
        engine: generates; the application starts and closes it.
        tokenizer: of the model.
        name: the model's, in requests and replies.
        template: renders chats; None when the model has none.
        no_template: why there is none.
        metrics: counts and times of requests.
        created: seconds since 1970.
        closing: whether new requests are refused, because the server shuts down.
        guard: keys, limits and rates.
        weights_root: folder below which updates of the weights may be read; None reads none from folders.
        share_prefixes: whether requests of different keys share cached prefixes.
        token_id_style: where chats have the ids of their prompts, ``vllm`` or ``sglang``.
        responses: replies of ``/v1/responses`` that can be continued.
        life: of an engine of a router, the name of its process; part of the ids of stored replies.
        starters: suggestions and tools of the page in a new conversation.
        lesson: training that the page may start; None offers none.
        open: generations that have not ended, by the ids of their requests.
        turns: makes the prompts of conversations.
        reward: the model with its scalar head, if it is a reward model.
        owners: whether the engine schedules requests of different owners in turn; some external servers do not.
    """

    engine: ServingEngine
    tokenizer: Tokenizer
    name: str
    template: ChatTemplate | None = None
    no_template: str = ""
    metrics: Metrics = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    closing: bool = False
    guard: Guard = field(default_factory=Guard)
    weights_root: Path | None = None
    share_prefixes: bool = False
    token_id_style: str = "vllm"
    responses: ResponseStore = field(default_factory=lambda: ResponseStore(Memories(64 * 2**20)))
    life: str = ""
    starters: Starters = field(default_factory=Starters)
    lesson: Lesson | None = None
    open: dict[str, list[Cancellable]] = field(default_factory=dict)
    turns: Turns = field(default_factory=RenderedTurns)
    reward: RewardModel | None = None
    owners: bool = True

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.engine, self.name)

    @property
    def longest(self) -> int:
        """Tokens that prompt and output may have together."""
        return self.engine.limits.tokens

    def with_turns(self, turns: Admitted) -> ServerState:
        """Returns a state for one request, with its own turns and responses; all else is shared."""
        assert self.grammars is not None  # built once, not for each copy
        state = copy(self)
        state.turns, state.responses = turns, turns.responses
        return state

    @cached_property
    def grammars(self) -> Grammars:
        """Makes matchers for structured output."""
        return Grammars(self.tokenizer, self.engine.limits.vocabulary)


async def server_of(request: Request) -> ServerState:
    """Returns the state of the application that serves a request."""
    state: ServerState = request.app.state.server
    turns = request.scope.get(SESSION)
    return state if turns is None else state.with_turns(turns)


Server = Annotated[ServerState, Depends(server_of)]
"""A route's parameter of this type is the state."""
