"""What the router itself tells a client, in the words of the dialect that the client speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Scope

from arcforge_serving.server.gate.record import ANTHROPIC, ANTHROPIC_KINDS, record_of

OVERLOADED, FAULT, INVALID = "overloaded_error", "server_error", "invalid_request_error"
LIMITED, EXCEEDED = "rate_limit_error", "rate_limit_exceeded"
RESPONSES = "/v1/responses"
DONE = b"data: [DONE]\n\n"


def problem(
    status: int, message: str, kind: str = INVALID, *,
    param: str | None = None, code: str | None = None, headers: Mapping[str, str] | None = None,
) -> JSONResponse:  # fmt: skip
    """Returns an error in OpenAI's shape."""
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers)


def problem_at(scope: Scope, status: int, message: str, kind: str = INVALID, **further: Any) -> JSONResponse:
    """Returns an error in the shape of the dialect that a request speaks, and notes it for the log.

    Args:
        scope: of the request.
        status, message, kind, further: see `problem`.
    """
    record_of(scope).error = further.get("code") or kind
    if scope["path"].startswith(ANTHROPIC):
        error = {"type": ANTHROPIC_KINDS.get(status, "api_error"), "message": message}
        return JSONResponse({"type": "error", "error": error}, status, further.get("headers"))
    return problem(status, message, kind, **further)


def last_events(path: str, message: str) -> bytes:
    """Returns the events that end a stream which broke off."""
    if path.startswith(ANTHROPIC):
        return _event("error", {"type": "error", "error": {"type": "api_error", "message": message}})
    if path.startswith(RESPONSES):
        return _event("error", {"type": "error", "code": FAULT, "message": message, "param": None})
    error = {"error": {"message": message, "type": FAULT, "param": None, "code": None}}
    return b"data: " + json.dumps(error).encode() + b"\n\n" + DONE


def _event(name: str, content: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()
