"""What the router itself tells a client, in the words of the dialect that the client speaks."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse

OVERLOADED, FAULT, INVALID = "overloaded_error", "server_error", "invalid_request_error"
ANTHROPIC, RESPONSES = "/v1/messages", "/v1/responses"
DONE = b"data: [DONE]\n\n"


def problem(status: int, message: str, kind: str = INVALID, headers: dict[str, str] | None = None) -> JSONResponse:
    """Returns an error in OpenAI's shape."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return JSONResponse(body, status, headers)


def problem_at(path: str, status: int, message: str, kind: str) -> JSONResponse:
    """Returns an error in the shape of a route's dialect."""
    if path.startswith(ANTHROPIC):
        return JSONResponse({"type": "error", "error": {"type": "api_error", "message": message}}, status)
    return problem(status, message, kind)


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
