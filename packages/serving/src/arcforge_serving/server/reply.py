"""A generation as a reply: whole, or as server-sent events while it runs."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_serving.server.common import GenerateRequest
from arcforge_serving.server.errors import problem_of
from arcforge_serving.server.generation import Generation, Job, News
from arcforge_serving.server.state import ServerState

Json = dict[str, Any]
T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
UNBROKEN = str.maketrans({c: f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"})
"""Line ends of Unicode that JSON lets through; many clients would end an event's line there."""


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


async def respond(
    request: Request, server: ServerState, body: GenerateRequest, jobs: list[Job], writer: Writer
) -> Response:
    """Generates, and answers when it is done or with a stream; a client that goes away ends the generation.

    Args:
        request: what came over the wire.
        server: has the engine.
        body: the request.
        jobs: `body.n` sequences for each prompt, in order.
        writer: of the route.

    Raises:
        ConfigError, QueueFullError, ClosedError: see `Generation`.
        Exception: what made a sequence fail, where the answer is not a stream.
    """
    head = {"id": f"{writer.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": server.name}
    names = {str(head["id"]), request.headers.get("x-request-id", "")} - {""}
    owner = request.state.owner or body.user  # holders of a key have one turn, whatever they call their users
    generation = Generation(server, jobs, body.priority, owner, sorted(names))
    usage = Usage(body, jobs)
    if body.stream:
        chunks = _chunks(body, {**head, "object": writer.chunk_object}, generation, writer, usage)
        return EventStream(_events(chunks), generation.cancel)

    async def whole() -> Json:
        parts = []
        async for news in generation.news():
            usage.add(news)
            parts += writer.parts(news)
        choices = sorted(writer.join(parts), key=lambda choice: choice["index"])
        return {**head, "object": writer.whole_object, **writer.extra, "choices": choices, "usage": usage.body}

    answer = await unless_gone(request, whole())
    if answer is None:
        generation.cancel()
        return Response(status_code=499)  # nobody reads it
    return JSONResponse(answer)


class Usage:
    """Counts tokens; a prompt counts once, however many sequences continue it.

    Args:
        body: says how many continue each.
        jobs: all of them.
    """

    def __init__(self, body: GenerateRequest, jobs: list[Job]) -> None:
        self._body = body
        self._prompt = sum(len(job.prompt) for job in jobs[:: body.n])
        self._completion = self._cached = self._drafted = self._accepted = 0

    def add(self, news: News) -> None:
        """Counts what a sequence has generated, at its end."""
        output: GenerationOutput | None = news.output
        if output is not None:
            self._completion += 0 if self._body.prompt_only else len(output.token_ids)
            self._cached += output.cached_tokens if news.index % self._body.n == 0 else 0
            self._drafted += output.drafted_tokens
            self._accepted += output.accepted_tokens

    @property
    def body(self) -> Json:
        """OpenAI's object."""
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self._accepted,
                "rejected_prediction_tokens": self._drafted - self._accepted,
            },
        }


async def _chunks(
    body: GenerateRequest, head: Json, generation: Generation, writer: Writer, usage: Usage
) -> AsyncIterator[Json]:
    tail = {"usage": None} if body.wants_usage else {}
    extra = writer.extra
    async for news in generation.news():
        usage.add(news)
        for part in writer.parts(news):
            yield {**head, **extra, "choices": [part], **tail}
            extra = {}
    if body.wants_usage:
        yield {**head, "choices": [], "usage": usage.body}


async def _events(chunks: AsyncIterator[Json]) -> AsyncIterator[bytes]:
    """Yields chunks as events; an error is the last one but for the end."""
    try:
        async for chunk in chunks:
            yield event(chunk)
    except Exception as error:
        yield event(problem_of(error).body)
    yield DONE


def event(content: Json) -> bytes:
    """Returns a server-sent event."""
    written = json.dumps(content, ensure_ascii=False, separators=(",", ":")).translate(UNBROKEN)
    return b"data: " + written.encode() + b"\n\n"


class EventStream(StreamingResponse):
    """Server-sent events; whatever ends the response, `close` is called."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end or the client is gone."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Returns what a coroutine gives; None, and ends it, when the client goes away first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
