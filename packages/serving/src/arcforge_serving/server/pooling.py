"""``/pooling`` of a reward model, as vLLM serves one: a conversation to its score."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from arcforge_core.chat.openai import messages_from_openai
from arcforge_core.contracts.chat import Message
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_serving.server.gate.guard import GuardedRoute
from arcforge_serving.server.shared.body import Body, Text
from arcforge_serving.server.shared.errors import RESPONSES, UnknownModelError
from arcforge_serving.server.shared.state import Server

router = APIRouter(responses=RESPONSES, route_class=GuardedRoute)
MOST = 1024
"""Messages of a conversation, and texts of a request."""


class PoolingRequest(Body):
    """A conversation, or texts; one of the two."""

    model: Text | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST)] | None = None
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST)] | None = None
    encoding_format: Text = "float"
    user: Text | None = None


class Pooled(BaseModel):
    """The score of one conversation, a list of one number."""

    index: int
    object: str = "pooling"
    data: list[float]


class PoolingReply(BaseModel):
    """Scores in the order of the request."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Pooled]
    usage: dict[str, int]


@router.post("/pooling")
async def pooling(body: PoolingRequest, server: Server) -> PoolingReply:
    """Scores a conversation, or each text as an assistant's message."""
    model = server.reward
    if model is None:
        raise ConfigError("model", server.name, "is no reward model: arcforge-train stage=reward makes one")
    if body.model is not None and body.model != server.name:
        raise UnknownModelError(body.model, server.name)
    if body.encoding_format != "float":
        raise ConfigError("encoding_format", body.encoding_format, "must be float")
    if (body.messages is None) == (body.input is None):
        raise ConfigError("messages", None, "one of messages and input must be given")
    conversations: list[list[Message]]
    if body.messages is not None:
        conversations = [messages_from_openai(body.messages)]
    else:
        texts = body.input if isinstance(body.input, list) else [str(body.input)]
        conversations = [[Message("assistant", text)] for text in texts]
    scores = await asyncio.to_thread(model.score_all, conversations)
    if not all(map(math.isfinite, scores)):
        raise ArcforgeError("a score is not finite: the weights of the reward model are damaged")
    tokens = sum(len(model.ids(conversation)) for conversation in conversations)
    return PoolingReply(
        id=f"pool-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=server.name,
        data=[Pooled(index=n, data=[score]) for n, score in enumerate(scores)],
        usage={"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    )
