"""Replies of the routes with choices: ``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from typing import Protocol

from arcforge_serving.server.common import GenerateRequest
from arcforge_serving.server.errors import problem_of
from arcforge_serving.server.generation import Job, News
from arcforge_serving.server.reply import Event, Json, Usage
from arcforge_serving.server.state import ServerState

DONE = b"data: [DONE]\n\n"


class Writer(Protocol):
    """Turns news of sequences into a route's choices."""

    prefix: str
    """Of the reply's id."""
    whole_object: str
    chunk_object: str
    """What OpenAI calls the reply, and a part of it."""
    extra: Json
    """Fields of the whole reply, and of the first part."""

    def parts(self, news: News) -> list[Json]:
        """Returns the next parts of choices, each with its ``index``."""

    def join(self, parts: list[Json]) -> list[Json]:
        """Returns the choices that all parts make."""


class OpenAIReply:
    """A reply with choices; a `Reply`.

    Args:
        body: the request.
        jobs: its sequences.
        writer: of the route.
        server: has the model's name.
    """

    last = DONE

    def __init__(self, body: GenerateRequest, jobs: list[Job], writer: Writer, server: ServerState) -> None:
        self._body, self._writer = body, writer
        self.id = f"{writer.prefix}-{uuid.uuid4().hex}"
        self.usage = Usage(body, jobs)
        self._head = {"id": self.id, "created": int(time.time()), "model": server.name}
        self._chunk_head = {**self._head, "object": writer.chunk_object}
        self._extra = writer.extra
        self._parts: list[Json] = []

    def begin(self) -> list[Event]:
        """Returns nothing: the first chunk has what it says."""
        return []

    def take(self, news: News) -> list[Event]:
        """Returns a chunk for each part."""
        parts = self._writer.parts(news)
        if not self._body.stream:
            self._parts += parts
            return []
        tail = {"usage": None} if self._body.wants_usage else {}
        events: list[Event] = []
        for part in parts:
            events.append(("", {**self._chunk_head, **self._extra, "choices": [part], **tail}))
            self._extra = {}
        return events

    def end(self) -> list[Event]:
        """Returns the usage, where it is wanted."""
        if not self._body.wants_usage:
            return []
        return [("", {**self._chunk_head, "choices": [], "usage": self.usage.body})]

    def failed(self, error: Exception) -> list[Event]:
        """Returns the error."""
        return [("", problem_of(error).body)]

    def whole(self) -> Json:
        """Returns the reply."""
        choices = sorted(self._writer.join(self._parts), key=lambda choice: choice["index"])
        head = {**self._head, "object": self._writer.whole_object, **self._writer.extra}
        return {**head, "choices": choices, "usage": self.usage.body}
