"""Ids of requests, and a line in the log for each: who asked for what, how it went, how many tokens and how long.

What was said is in no line, and no key: of a key there is the beginning of its digest.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from arcforge_serving.server.reply import Usage

ANTHROPIC = "/v1/messages"
"""Routes from here on answer as Anthropic's do."""
ANTHROPIC_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip
LOG = logging.getLogger("arcforge.requests")
ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""Ids that clients may give; others are replaced."""
LONGEST_PATH = 200


@dataclass
class Record:
    """What becomes known of a request on its way.

    Attributes:
        id: the client's ``X-Request-Id``, or a new one.
        owner: beginning of its key's digest.
        holder: whose rate it counts against; empty where nobody's.
        usage: its tokens, where it generates.
        stream: whether it is answered with a stream.
        first: seconds until its first token.
        reasons: why its sequences ended.
        error: kind of what went wrong; empty where nothing did.
        complete: whether a stream has reached its end.
        passed: whether it was passed on to an engine whose log has it.
    """

    id: str = ""
    owner: str = ""
    holder: str = ""
    usage: Usage | None = None
    stream: bool = False
    first: float | None = None
    reasons: list[str] = field(default_factory=list)
    error: str = ""
    complete: bool = False
    passed: bool = False
    began: float = field(default_factory=time.monotonic)

    def heard(self, reason: str | None) -> None:
        """Something was generated, or a sequence ended."""
        if self.first is None:
            self.first = time.monotonic() - self.began
        if reason is not None:
            self.reasons.append(reason)

    def fields(self) -> dict[str, Any]:
        """Returns what the log shows of it; what a request does not have is left out."""
        shown: dict[str, Any] = {"request_id": self.id, "key": self.owner, "error": self.error}
        if self.usage is not None:
            counted = self.usage.body
            shown |= {
                "stream": self.stream,
                "prompt_tokens": counted["prompt_tokens"],
                "cached_tokens": counted["prompt_tokens_details"]["cached_tokens"],
                "completion_tokens": counted["completion_tokens"],
                "finish_reasons": self.reasons,
                "first_token_seconds": None if self.first is None else round(self.first, 4),
            }
        return {name: value for name, value in shown.items() if value not in ("", None, [])}


def record_of(scope: MutableMapping[str, Any]) -> Record:
    """Returns what is known of a request."""
    found: Record = scope.setdefault("state", {}).setdefault("record", Record())
    return found


class Access:
    """Wraps an application: gives each request an id, which its answer has as ``X-Request-Id``, and logs it.

    Args:
        app: the application.
        answered: is told the route's path, the status and the seconds of each request, and its record.
            None counts nothing.
    """

    def __init__(self, app: ASGIApp, answered: Callable[[str, int, float, Record], None] | None = None) -> None:
        self._app, self._answered = app, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
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
