"""A generation as a reply: whole, or as server-sent events while it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_serving.server.access import Record, record_of
from arcforge_serving.server.common import GenerateRequest
from arcforge_serving.server.errors import problem_of
from arcforge_serving.server.generation import Generation, Job, News
from arcforge_serving.server.state import ServerState

Json = dict[str, Any]
T = TypeVar("T")
Event = tuple[str, Json]
"""Name, empty where a dialect has none, and content."""
GONE = "client_gone"
"""Kind of error of requests whose clients did not wait for the end."""
UNBROKEN = str.maketrans({c: f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"})
"""Line ends of Unicode that JSON lets through; many clients would end an event's line there."""


class Reply(Protocol):
    """What a generation becomes in a dialect. The same calls come whether it is streamed or not: ``begin``, ``take``
    for all news, then ``end``, or ``failed``."""

    id: str
    last: bytes
    """What stands behind all events of a stream."""
    usage: Usage

    def begin(self) -> Iterable[Event]:
        """Returns the events before anything was generated."""

    def take(self, news: News) -> Iterable[Event]:
        """Returns the events that news make.

        Raises:
            AbortedError: the dialect has no word for a sequence that the server ended.
        """

    def end(self) -> Iterable[Event]:
        """Returns the events after everything was generated."""

    def failed(self, error: Exception) -> Iterable[Event]:
        """Returns the events that end a stream in which something went wrong."""

    def whole(self) -> Json:
        """Returns the reply of a request without a stream, after `end`."""


async def respond(
    request: Request, server: ServerState, body: GenerateRequest, jobs: list[Job], reply: Reply
) -> Response:
    """Generates, and answers when it is done or with a stream; a client that goes away ends the generation.

    Args:
        request: what came over the wire.
        server: has the engine.
        body: the request, or the chat request that another dialect's one amounts to.
        jobs: `body.n` sequences for each prompt, in order.
        reply: of the dialect.

    Raises:
        ConfigError, QueueFullError, ClosedError: see `Generation`.
        Exception: what made a sequence fail, where the answer is not a stream.
    """
    record = record_of(request.scope)
    owner = request.state.owner or body.user  # holders of a key have one turn, whatever they call their users
    generation = Generation(server, jobs, body.priority, owner, sorted({reply.id, record.id} - {""}))
    record.usage, record.stream = reply.usage, body.stream
    server.guard.rates.spend(record.holder, reply.usage.prompt)
    if body.stream:

        def close() -> None:
            generation.cancel()
            record.error = record.error if record.complete else GONE

        return EventStream(_written(generation, reply, record), close)

    async def whole() -> Json:
        async for _ in _events(generation, reply, record):
            continue
        return reply.whole()

    answer = await unless_gone(request, whole())
    if answer is None:
        generation.cancel()
        record.error = GONE
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
        self.prompt = sum(len(job.prompt) for job in jobs[:: body.n])
        self._completion = [0] * len(jobs)
        self._cached = self._drafted = self._accepted = 0

    def add(self, news: News) -> None:
        """Counts what a sequence has generated: what came, and at its end all of it."""
        output: GenerationOutput | None = news.output
        if output is not None:
            self._cached += output.cached_tokens if news.index % self._body.n == 0 else 0
            self._drafted += output.drafted_tokens
            self._accepted += output.accepted_tokens
        if self._body.prompt_only:
            return
        if output is None:
            self._completion[news.index] += sum(len(piece.tokens) for piece in news.pieces)
        else:
            self._completion[news.index] = len(output.token_ids)

    @property
    def completion(self) -> int:
        """Tokens that were generated so far."""
        return sum(self._completion)

    @property
    def body(self) -> Json:
        """OpenAI's object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self._accepted,
                "rejected_prediction_tokens": self._drafted - self._accepted,
            },
        }


async def _events(generation: Generation, reply: Reply, record: Record) -> AsyncIterator[Event]:
    for event_ in reply.begin():
        yield event_
    async for news in generation.news():
        reply.usage.add(news)
        record.heard(None if news.output is None else news.output.finish_reason)
        for event_ in reply.take(news):
            yield event_
    for event_ in reply.end():
        yield event_


async def _written(generation: Generation, reply: Reply, record: Record) -> AsyncIterator[bytes]:
    """Yields the bytes of a stream; an error is the last event but for the end."""
    try:
        async for name, content in _events(generation, reply, record):
            yield event(content, name)
    except Exception as error:
        record.error = problem_of(error).name
        for name, content in reply.failed(error):
            yield event(content, name)
    if reply.last:
        yield reply.last
    record.complete = True


def event(content: Json, name: str = "") -> bytes:
    """Returns a server-sent event."""
    written = json.dumps(content, ensure_ascii=False, separators=(",", ":")).translate(UNBROKEN)
    return (f"event: {name}\n" if name else "").encode() + b"data: " + written.encode() + b"\n\n"


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
