"""A generation as a reply: whole, or as server-sent events while it runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from arcforge_core.contracts.serving_engine import SESSION_HEADER
from arcforge_serving.server.gate.guard import sharer
from arcforge_serving.server.gate.record import RequestRecord, record_of
from arcforge_serving.server.shared.errors import problem_of
from arcforge_serving.server.shared.generation import Generation
from arcforge_serving.server.shared.jobs import Job, Update
from arcforge_serving.server.shared.state import ServerState
from arcforge_serving.server.shared.usage import Json, Usage

T = TypeVar("T")
Event = tuple[str, Json]
"""Name, empty in dialects without names, and content."""
QUIET_SECONDS = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients of server-sent events skip."""
GONE = "client_gone"
"""Error kind of requests whose client disconnected."""
UNBROKEN = str.maketrans({c: f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"})
"""Unicode line ends that JSON allows; many clients would split an event there."""


class ReplyBuilder(Protocol):
    """Builds the reply of a dialect. Streamed or not, the calls are the same: ``begin``, ``take`` for each update, then
    ``end`` or ``failed``."""

    id: str
    last: bytes
    """Bytes after the last event of a stream."""
    usage: Usage

    def begin(self) -> Iterable[Event]:
        """Returns the events before the first token."""

    def take(self, update: Update) -> Iterable[Event]:
        """Returns the events of an update.

        Raises:
            AbortedError: the server ended the sequence, and the dialect has no finish reason for it.
        """

    def end(self) -> Iterable[Event]:
        """Returns the events after the last token."""

    def failed(self, error: Exception) -> Iterable[Event]:
        """Returns the events that end a stream in which something went wrong."""

    def whole(self) -> Json:
        """Returns the reply of a request without a stream, after `end`."""


class Asks(Protocol):
    """The part of a request's body that `respond` reads."""

    stream: bool
    priority: int
    session_id: str | None


class Shares(NamedTuple):
    """Whose share of the engine a request uses, and whose prefixes; see `ServingEngine.submit`."""

    owner: str
    salt: str


async def respond(
    request: Request,
    server: ServerState,
    body: Asks,
    jobs: list[Job],
    reply: ReplyBuilder,
    shares: Shares | None = None,
) -> Response:
    """Generates, and answers when it is done or with a stream; a client that disconnects ends the generation.

    Args:
        request: the HTTP request.
        server: has the engine.
        body: the request, or the chat request that another dialect's is translated to. ``X-Session-Id`` names its
            session, or else ``session_id``.
        jobs: its sequences, in order.
        reply: of the dialect.
        shares: by default those of the request's key.

    Raises:
        ConfigError, QueueFullError, ClosedError: see `Generation`.
        Exception: the error of a sequence, unless the answer is a stream.
    """
    record = record_of(request.scope)
    server.guard.check_priority(request.state.owner, body.priority)
    owner = sharer(request, request.state.owner)
    salt = "" if server.share_prefixes else request.state.owner  # hits would tell one key's prompts to another
    owner, salt = shares or (owner, salt)
    owner = owner if server.owners else ""
    session = request.headers.get(SESSION_HEADER) or body.session_id or ""
    names = sorted({reply.id, record.id} - {""})
    generation = Generation(server, jobs, body.priority, owner, names, salt, session)
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
        return Response(status_code=499)  # the client is gone
    return JSONResponse(answer)


async def _events(generation: Generation, reply: ReplyBuilder, record: RequestRecord) -> AsyncIterator[Event]:
    for event_ in reply.begin():
        yield event_
    async for update in generation.updates():
        reply.usage.add(update)
        record.heard(None if update.output is None else update.output.finish_reason)
        for event_ in reply.take(update):
            yield event_
    for event_ in reply.end():
        yield event_


async def _written(generation: Generation, reply: ReplyBuilder, record: RequestRecord) -> AsyncIterator[bytes]:
    """Yields the bytes of a stream; an error is its last event."""
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
    """Server-sent events; `close` is called when the response ends in any way. A stream without events for
    `QUIET_SECONDS`, as while its request waits, sends a comment, so that no proxy or client takes it for dead."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end or the client is gone."""
        sender = _AliveSender(send)
        alive = asyncio.create_task(sender.keep_alive())
        try:
            await super().__call__(scope, receive, sender)
        finally:
            alive.cancel()
            self._close()


class _AliveSender:
    """Sends the messages of a response, and comments in its pauses."""

    def __init__(self, send: Send) -> None:
        self._send, self._lock = send, asyncio.Lock()
        self._last, self._is_open = time.monotonic(), False

    async def __call__(self, message: Message) -> None:
        async with self._lock:
            self._is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await self._send(message)
            self._last = time.monotonic()

    async def keep_alive(self) -> None:
        """Sends comments until it is cancelled, or the client is gone, which the response notices by itself."""
        with suppress(OSError):
            while True:
                await asyncio.sleep(max(self._last + QUIET_SECONDS - time.monotonic(), 0.001))
                async with self._lock:
                    if self._is_open and time.monotonic() >= self._last + QUIET_SECONDS:
                        await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
                    elif self._is_open:
                        continue
                    self._last = time.monotonic()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Returns a coroutine's result; cancels it and returns None if the client disconnects first."""
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
