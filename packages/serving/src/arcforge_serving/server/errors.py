"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``; in Anthropic's on its routes.

What a request does wrong is 400, whatever it is; what does not exist 404; what may be tried again 503; our faults 500.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from arcforge_core.errors import ConfigError
from arcforge_serving.errors import ClosedError, QueueFullError
from arcforge_serving.grammar import GrammarError
from arcforge_serving.server.access import ANTHROPIC, ANTHROPIC_KINDS, record_of
from arcforge_serving.server.rates import RateLimitError

INVALID, LIMITED = "invalid_request_error", "rate_limit_error"
OVERLOADED, FAULT = "overloaded_error", "server_error"
FIELDS = {"max_new_tokens": "max_tokens", "json_schema": "schema"}
"""Our names of fields as requests have them."""
SHOWN = 200


class UnknownModelError(ConfigError):
    """Another model was asked for."""

    def __init__(self, asked: str, served: str) -> None:
        super().__init__("model", asked, f"there is no model {asked[:SHOWN]!r}; this server has {served!r}")


class UnknownReplyError(ConfigError):
    """A reply that is gone on from is not there."""

    def __init__(self, id_: str, kept: str) -> None:
        super().__init__("previous_response_id", id_, f"there is no such reply; {kept}")


class ContextLengthError(ConfigError):
    """Prompt and output do not fit into the context."""

    def __init__(self, prompt: int, output: int | None, longest: int) -> None:
        wanted = "" if output is None else f" and {output} of output are wanted"
        super().__init__(
            "prompt" if prompt >= longest else "max_tokens",
            prompt if prompt >= longest else output,
            f"the context has {longest} positions; the prompt has {prompt} tokens{wanted}",
        )


class AbortedError(Exception):
    """The server ended a sequence, and the dialect has no word for that."""


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Every error."""

    error: ErrorDetail


class AnthropicDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """Every error below `ANTHROPIC`."""

    type: Literal["error"]
    error: AnthropicDetail


@dataclass(frozen=True)
class Problem:
    """An error as a reply."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """Its JSON; what a client wrote may hold lone surrogates, which UTF-8 cannot write."""
        message, param = _printable(self.message), _printable(self.param or "")
        return {"error": {"message": message, "type": self.kind, "param": param or None, "code": self.code}}

    @property
    def name(self) -> str:
        """The most exact of its names."""
        return self.code or self.kind

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """Its JSON in Anthropic's shape."""
        kind = ANTHROPIC_KINDS.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": _printable(self.message)}}


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def problem_of(error: Exception) -> Problem:
    """Returns what a client is told of an exception."""
    match error:
        case RequestValidationError():
            return _invalid(error)
        case UnknownModelError():
            return Problem(404, INVALID, f"model: {error.accepted}", "model", "model_not_found")
        case UnknownReplyError():
            message = f"{error.field}: {error.accepted}"
            return Problem(404, INVALID, message, error.field, "previous_response_not_found")
        case ConfigError():
            param = FIELDS.get(error.field, error.field)
            code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
            return Problem(400, INVALID, f"{param}: {error.accepted}", param, code)
        case GrammarError():
            return Problem(400, INVALID, str(error))
        case RecursionError():
            return Problem(400, INVALID, "body: is nested too deeply")
        case UnicodeEncodeError():
            return Problem(400, INVALID, "body: a string holds a lone surrogate, which is no character")
        case HTTPException():
            return Problem(error.status_code, INVALID, str(error.detail))
        case QueueFullError():
            return Problem(503, OVERLOADED, "too many requests wait; try again later")
        case RateLimitError():
            return Problem(429, LIMITED, str(error), None, "rate_limit_exceeded")
        case AbortedError():
            return Problem(503, OVERLOADED, "the server ended the request; try again")
        case ClosedError():
            return Problem(503, OVERLOADED, "the server is shutting down")
        case _:
            return Problem(500, FAULT, f"{type(error).__name__}: {error}")


def add_error_handlers(app: FastAPI) -> None:
    """Gives every error the one shape."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        problem = problem_of(error)
        record_of(request.scope).error = problem.name
        body = problem.anthropic_body if request.url.path.startswith(ANTHROPIC) else problem.body
        return JSONResponse(body, problem.status, getattr(error, "headers", None))

    kinds = (
        RequestValidationError, ConfigError, GrammarError, RecursionError, UnicodeEncodeError, HTTPException,
        AbortedError, RateLimitError,
    )  # fmt: skip
    for kind in (*kinds, QueueFullError, ClosedError, Exception):
        app.add_exception_handler(kind, answer)


def _invalid(error: RequestValidationError) -> Problem:
    """Names the first field that is wrong; where it may be of several types, all of them."""
    errors = error.errors()
    path = _path(errors[0])
    reasons = []
    for each in errors:
        unknown = each["type"] == "extra_forbidden"
        if _path(each)[:1] == path[:1]:
            reasons.append("this server does not know the field" if unknown else str(each["msg"]))
    first, *others = dict.fromkeys(reasons)
    reason = "; ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    param = path[0] if path else None
    inside = f" (at {'.'.join(path)})" if len(path) > 1 else ""
    return Problem(400, INVALID, f"{param or 'body'}: {reason[: 5 * SHOWN]}{inside[:SHOWN]}", param)


def _path(error: Any) -> list[str]:
    """Returns where in the body an error is, the field first, without pydantic's names of types."""
    path: list[int | str] = list(error["loc"][1:])
    if not path or isinstance(path[0], int):  # a place in malformed JSON
        return []
    return [path[0], *(str(part) for part in path[1:] if isinstance(part, int) or part.isidentifier())]


RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request is wrong"},
    401: {"model": ErrorBody, "description": "A key is needed"},
    404: {"model": ErrorBody, "description": "There is no such thing"},
    408: {"model": ErrorBody, "description": "The body took too long"},
    413: {"model": ErrorBody, "description": "The body is too large"},
    429: {"model": ErrorBody, "description": "The key has taken what it may for now"},
    500: {"model": ErrorBody, "description": "A fault of the server"},
    503: {"model": ErrorBody, "description": "Too many requests, or the server shuts down"},
}
"""What every route may answer, for the OpenAPI document."""
ANTHROPIC_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {**response, "model": AnthropicError} for status, response in RESPONSES.items()
}


def responses_with_stream(
    reply: type[BaseModel], others: dict[int | str, dict[str, Any]] = RESPONSES
) -> dict[int | str, dict[str, Any]]:
    """Returns what a route may answer that gives a reply or a stream."""
    return {200: {"model": reply, "content": {"text/event-stream": {}}}, **others}
