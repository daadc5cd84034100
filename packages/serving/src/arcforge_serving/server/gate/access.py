"""Ids of requests, and a line in the log for each: who asked for what, how it went, how many tokens and how long.

What was said is in no line, and no key: of a key there is the beginning of its digest.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arcforge_serving.server.gate.record import ANTHROPIC, RequestRecord, record_of

LOG = logging.getLogger("arcforge.requests")
ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""Ids that clients may give; others are replaced."""
LONGEST_PATH = 200


class Access:
    """Wraps an application: gives each request an id, which its answer has as ``X-Request-Id``, and logs it.

    Args:
        app: the application.
        answered: called with the route's path, the status, the seconds and the record of each request.
            None counts nothing.
    """

    def __init__(self, app: ASGIApp, answered: Callable[[str, int, float, RequestRecord], None] | None = None) -> None:
        self._app, self._answered = app, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = record_of(scope)
        given = Headers(scope=scope).get("x-request-id", "")
        record.id = given if ACCEPTED.fullmatch(given) else uuid.uuid4().hex
        status = 499  # until an answer begins

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.id
                if record.ignored:
                    headers["x-ignored-fields"] = ", ".join(record.ignored)
                if scope["path"].startswith(ANTHROPIC):
                    headers["request-id"] = record.id
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            seconds = time.monotonic() - record.began
            if self._answered is not None:
                self._answered(getattr(scope.get("route"), "path", ""), status, seconds, record)
            if LOG.isEnabledFor(logging.INFO) and not record.passed:
                head = {"method": scope["method"], "path": scope["path"][:LONGEST_PATH], "status": status}
                client = (scope.get("client") or ("",))[0]
                shown = {**head, "seconds": round(seconds, 4), "client": client, **record.fields()}
                LOG.info("%(method)s %(path)s %(status)s %(seconds)ss", shown, extra={"shown": shown})
