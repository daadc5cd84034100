"""One request on its way to an engine and back.

Nothing reaches the client before the engine has sent a whole reply, or the first event of a stream. Until then the
request may be retried on another engine. A stream is relayed in whole events, so that after the death of an engine it
is correct up to the error that ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from arcforge_serving.router.decisions import Decision, DecisionLog
from arcforge_serving.router.fleet import Fleet, Member, NoEngineError, NoReplyError
from arcforge_serving.router.policies import Wanted
from arcforge_serving.router.problems import FAULT, OVERLOADED, last_events, problem_at
from arcforge_serving.server.gate.record import record_of

HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
"""Headers of one connection, not of the message."""
NOT_PASSED_ON = {*HOP, "host", "content-length", "expect", "accept-encoding", "date", "server"}
CHECKED = ("origin",)
"""The router compares it with its own ``Host``; engines have other names."""
OURS = ("x-request-id", "x-forwarded-for")
"""What the router says in place of the client."""
PREVIOUS, NO_REPLY = "previous_response_id", "previous_response_not_found"
BUSY = 503
END = b"\n\n"
ENGINE = "x-arcforge-engine"
"""Header of replies: the engine's number."""


@dataclass
class Counts:
    """Counts of the router's work.

    Attributes:
        requests: by engine and outcome: ``done``, ``failed`` (before anything was sent), ``broken`` (after that),
            ``left`` by the client.
        retries: requests that were tried on another engine.
        refused: requests for which there was no engine.
        limited: requests of keys that had taken what they may.
    """

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    retries: int = 0
    refused: int = 0
    limited: int = 0


class Relay:
    """Passes a request on; an ASGI application for one.

    Args:
        fleet: has the engines.
        counts: counts its outcome.
        content: the request's body.
        wanted: its features.
        log: gets the decisions.
    """

    def __init__(
        self, fleet: Fleet, counts: Counts, content: bytes, wanted: Wanted, log: DecisionLog | None = None
    ) -> None:
        self._fleet, self._counts, self._content, self._wanted = fleet, counts, content, wanted
        self._log = log or DecisionLog(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers; ends with the client."""
        await unless_gone(receive, self._answer(Request(scope), send))

    async def _answer(self, request: Request, send: Send) -> None:
        record, tried = record_of(request.scope), set[int]()
        busy: httpx.Response | None = None
        gone = False
        while len(tried) <= self._fleet.config.retries:
            loads = {member.name: member.in_flight for member in self._fleet.ready}
            moves = self._fleet.policy.moves
            try:
                member = self._fleet.choose(self._wanted, tried)
            except NoEngineError:
                break
            except NoReplyError:
                gone = not tried
                break
            self._counts.retries += bool(tried)
            tried.add(member.number)
            moved = self._fleet.policy.moves > moves
            decision = Decision(self._wanted.session, len(self._content), member.name, loads, moved)
            attempt = Attempt(member, request, send, decision)
            outcome = "left"
            try:
                busy = await attempt.run(self._content)
                outcome = "done" if busy is None else "failed"
            except (httpx.TransportError, httpx.StreamError) as error:  # it died, or its life was ended
                outcome = "broken" if attempt.begun else "failed"
                if attempt.begun:
                    await attempt.break_off(type(error).__name__)
            finally:
                self._counts.requests[member.name, outcome] += 1
                decision.outcome, decision.seconds = outcome, round(time.time() - decision.at, 6)
                self._log.write(decision)
                record.passed = outcome in ("done", "left")
            if outcome != "failed":
                return
        if busy is not None:
            record.passed = True
            await send_whole(send, busy, busy.content, {})
            return
        if gone:
            message = "there is no such reply: engines store theirs until they restart"
            problem = problem_at(request.scope, 404, message, param=PREVIOUS, code=NO_REPLY)
        elif tried:
            message = "the engine died before it answered, and so did every other that was tried"
            problem = problem_at(request.scope, 502, message, FAULT)
        else:
            self._counts.refused += 1
            who = "no engine takes" if self._wanted.life is None else "the engine that keeps this reply does not take"
            problem = problem_at(request.scope, 503, f"{who} requests now; try again later", OVERLOADED)
        await problem(request.scope, request.receive, send)


class Attempt:
    """A request on one engine; `decision` gets what was sent.

    Attributes:
        begun: whether something was sent to the client.
    """

    def __init__(self, member: Member, request: Request, send: Send, decision: Decision) -> None:
        self._member, self._request, self._send, self._decision = member, request, send, decision
        self.begun = False

    async def run(self, content: bytes) -> httpx.Response | None:
        """Sends the engine's answer; returns it instead, unsent, when the engine is too busy.

        Raises:
            httpx.TransportError: the engine died.
        """
        request, mark = self._request, {ENGINE: self._member.name}
        headers = passed_on(request)
        with self._member.busy() as http:
            url = engine_url(request.scope["raw_path"], request.scope["query_string"])
            async with http.stream(request.method, url, headers=headers, content=content) as response:
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    whole = await response.aread()
                    if response.status_code == BUSY:
                        return response
                    self.begun = True
                    self._decision.sent = len(whole)
                    await send_whole(self._send, response, whole, mark)
                    return None
                async for events in whole_events(response.aiter_raw()):
                    self._decision.sent += len(events)
                    self._decision.events += events.count(END)
                    if not self.begun:
                        self.begun = True
                        await self._send(start(response, mark))
                    await self._send({"type": "http.response.body", "body": events, "more_body": True})
                if not self.begun:
                    await self._send(start(response, mark))
                await self._send({"type": "http.response.body", "body": b""})
        return None

    async def break_off(self, why: str) -> None:
        """Ends a stream with an error."""
        message = (
            f"engine {self._member.name} died while it answered ({why}); what came so far is right, the rest is lost"
        )
        record_of(self._request.scope).error = FAULT
        body = last_events(self._request.url.path, message)
        await self._send({"type": "http.response.body", "body": body})


def passed_on(request: Request) -> list[tuple[bytes, bytes]]:
    """Returns the headers that an engine gets: the client's, and from us the request's id and the client's address."""
    headers = [(k, v) for k, v in request.headers.raw if k.decode("latin-1") not in (*NOT_PASSED_ON, *CHECKED, *OURS)]
    ours = (record_of(request.scope).id, request.client.host if request.client else "")
    return headers + [(name.encode(), value.encode()) for name, value in zip(OURS, ours, strict=True) if value]


def engine_url(raw_path: bytes, query: bytes) -> httpx.URL:
    """Returns a request's target as it was written."""
    return httpx.URL("http://engine", raw_path=raw_path + (b"?" + query if query else b""))


async def whole_events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cuts a stream of server-sent events between events; half a one at the end is dropped.

    Raises:
        httpx.RemoteProtocolError: it ends within an event, which no engine does that lives.
    """
    rest = b""
    async for part in parts:
        whole, end, rest = (rest + part).rpartition(END)
        if end:
            yield whole + end
    if rest:
        raise httpx.RemoteProtocolError("the stream ends within an event")


def start(response: httpx.Response, further: dict[str, str], length: int | None = None) -> Message:
    """Returns the message that begins an answer."""
    headers = [(k.lower(), v) for k, v in response.headers.raw if k.decode("latin-1").lower() not in NOT_PASSED_ON]
    headers += [(name.encode(), value.encode()) for name, value in further.items()]
    headers += [] if length is None else [(b"content-length", str(length).encode())]
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}


async def send_whole(send: Send, response: httpx.Response, content: bytes, further: dict[str, str]) -> None:
    """Sends an answer that is there."""
    await send(start(response, further, len(content)))
    await send({"type": "http.response.body", "body": content})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Ends a coroutine when the client goes away first."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
