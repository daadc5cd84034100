"""Replies of the routes with choices: ``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from typing import Protocol

from arcforge_serving.server.shared.common import GenerateRequest
from arcforge_serving.server.shared.errors import problem_of
from arcforge_serving.server.shared.jobs import Job, Update
from arcforge_serving.server.shared.reply import Event
from arcforge_serving.server.shared.state import ServerState
from arcforge_serving.server.shared.usage import Json, Usage

DONE = b"data: [DONE]\n\n"


class Writer(Protocol):
    """Turns updates of sequences into a route's choices."""

    prefix: str
    """Of the reply's id."""
    whole_object: str
    chunk_object: str
    """What OpenAI calls the reply, and a part of it."""
    extra: Json
    """Fields of the whole reply, and of the first part."""

    def parts(self, update: Update) -> list[Json]:
        """Returns the next parts of choices, each with its ``index``."""

    def details(self) -> Json:
        """Returns what usage says of the generated tokens so far, besides drafts."""

    def join(self, parts: list[Json]) -> list[Json]:
        """Returns the choices that all parts make."""


class OpenAIReply:
    """A reply with choices; a `ReplyBuilder`.

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
        self.usage = Usage(jobs, body.n, body.prompt_only)
        self._head = {"id": self.id, "created": int(time.time()), "model": server.name}
        self._chunk_head = {**self._head, "object": writer.chunk_object}
        self._extra = writer.extra
        self._parts: list[Json] = []

    @property
    def _usage(self) -> Json:
        body = self.usage.body
        body["completion_tokens_details"] |= self._writer.details()
        return body

    def begin(self) -> list[Event]:
        """Returns nothing: the first chunk has what it says."""
        return []

    def take(self, update: Update) -> list[Event]:
        """Returns a chunk for each part."""
        parts = self._writer.parts(update)
        if not self._body.stream:
            self._parts += parts
            return []
        tail: Json = {"usage": None} if self._body.wants_usage else {}
        if self._body.wants_usage_so_far:
            tail = {"usage": self._usage}
        events: list[Event] = []
        for part in parts:
            events.append(("", {**self._chunk_head, **self._extra, "choices": [part], **tail}))
            self._extra = {}
        return events

    def end(self) -> list[Event]:
        """Returns the usage, where it is wanted."""
        if not self._body.wants_usage:
            return []
        return [("", {**self._chunk_head, "choices": [], "usage": self._usage})]

    def failed(self, error: Exception) -> list[Event]:
        return [("", problem_of(error).body)]

    def whole(self) -> Json:
        choices = sorted(self._writer.join(self._parts), key=lambda choice: choice["index"])
        head = {**self._head, "object": self._writer.whole_object, **self._writer.extra}
        return {**head, "choices": choices, "usage": self._usage}
