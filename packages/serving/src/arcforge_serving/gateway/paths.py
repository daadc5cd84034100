"""Finds the session of a request, by path or by key, and serves it by the routes of the server's dialects.

``/sessions/ID/v1/...`` and ``/v1/...`` with the session's secret are the same. The dialects see a request that was
admitted, with the session's `Turn` in its scope; everything else is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arcforge_core.contracts.serving_engine import SESSION_HEADER
from arcforge_serving.gateway.session import AgentSession
from arcforge_serving.gateway.sessions import Sessions
from arcforge_serving.server.gate.guard import READ, SESSION, Limits, bounded, credential
from arcforge_serving.server.gate.record import record_of
from arcforge_serving.server.shared.errors import answer_at
from arcforge_serving.server.shared.memory import remembering

PATH = re.compile(r"/sessions/([^/]+)(/v1/.+)")
DIALECTS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}
OTHERS = re.compile(r"/v1/(models(/.*)?|messages/count_tokens|responses/.+)")
NO_ROUTE = f"a session has no such route, only {', '.join(DIALECTS)} and /v1/models"


def key_of(headers: Headers) -> str:
    """Returns the key of a request, from ``Authorization`` or ``x-api-key``."""
    return (credential(headers) or "").partition(" ")[2].strip()


class SessionPaths:
    """Wraps an application.

    Args:
        app: the application.
        sessions: the open ones.
        limits: called for each request: of its body.
    """

    def __init__(self, app: ASGIApp, sessions: Sessions, limits: Callable[[], Limits]) -> None:
        self._app, self._sessions, self._limits = app, sessions, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def begin_and_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            session = self._find(scope)
            if session is None:
                await self._app(scope, receive, begin_and_send)
            elif scope["method"] == "POST" and scope["path"] in DIALECTS:
                await self._turn(session, scope, receive, begin_and_send)
            elif OTHERS.fullmatch(scope["path"]):
                scope[SESSION] = session.look()
                await self._app(scope, receive, begin_and_send)
            else:
                raise HTTPException(404, NO_ROUTE)
        except Exception as error:
            if begun:  # the application has answered, and raises its fault for the server's log
                raise
            await answer_at(scope, error)(scope, receive, send)

    def _find(self, scope: Scope) -> AgentSession | None:
        """Returns the session; rewrites the path to that of the dialect."""
        by_key, found = self._sessions.of_key(key_of(Headers(scope=scope))), PATH.fullmatch(scope["path"])
        if found is None:
            return by_key if scope["path"].startswith("/v1/") else None
        scope["path"], scope["raw_path"] = found[2], found[2].encode()
        session = self._sessions.find(found[1])
        if by_key is not None and by_key is not session:
            raise HTTPException(403, "the key is another session's")
        return session

    async def _turn(self, session: AgentSession, scope: Scope, receive: Receive, send: Send) -> None:
        """Samples, or sends the reply of a request that is repeated."""
        headers, path = Headers(scope=scope), scope["path"]
        request = Request(scope, receive)
        body = await bounded(request, self._limits(), False).body()
        scope[READ] = True
        kept = await session.replies.find(headers, path, body)
        if kept is not None:
            await kept.send(send)
            return
        turn = scope[SESSION] = session.begin(DIALECTS[path])
        key, reply = session.replies.begin(headers, path, body)
        is_whole = False
        # the engine knows the session by the gateway's name for it, whatever name the client gave it
        named = (SESSION_HEADER.lower().encode(), session.id.encode())
        scope["headers"] = [*(each for each in scope["headers"] if each[0] != named[0]), named]

        async def keep_and_send(message: Message) -> None:
            nonlocal is_whole
            if reply.take(message):
                worked = reply.start["status"] == 200 and not record_of(scope).error
                is_whole = worked and turn.record is not None
                if is_whole:
                    session.keep_reply(key, reply)
            await send(message)

        try:
            with remembering(session.memory):
                await self._app(scope, _again(body, receive), keep_and_send)
        finally:
            turn.finish()
            session.replies.end(key, reply, is_whole)


def _again(body: bytes, receive: Receive) -> Receive:
    """Returns a channel that gives the body once more, then what follows it."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
