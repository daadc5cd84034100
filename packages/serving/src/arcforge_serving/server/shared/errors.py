"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``; in Anthropic's on its routes.

A wrong request is 400; an unknown model or reply 404; an error worth a retry 503; a fault of the server 500.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_serving.engine.errors import ClosedError, QueueFullError, RemoteError
from arcforge_serving.engine.grammar import GrammarError
from arcforge_serving.server.gate.rates import RateLimitError
from arcforge_serving.server.gate.record import ANTHROPIC, ANTHROPIC_KINDS, record_of

INVALID, LIMITED = "invalid_request_error", "rate_limit_error"
OVERLOADED, FAULT = "overloaded_error", "server_error"
FIELDS = {"max_new_tokens": "max_tokens", "json_schema": "schema"}
"""Names of fields in requests, by our names."""
SHOWN = 200
NOT_FINITE = "not_finite"
"""Code of a sequence whose logits are not finite: the weights are at fault."""
ENGINE_FAILED = "engine_failed"
"""Code of a request that an external engine has not answered."""
NOT_KEPT = "not_kept"
"""Code of a turn that could not be written to disk."""


class UnknownModelError(ConfigError):
    """A model that this server does not have."""

    def __init__(self, asked: str, served: str) -> None:
        super().__init__("model", asked, f"there is no model {asked[:SHOWN]!r}; this server has {served!r}")


class UnknownReplyError(ConfigError):
    """A reply to continue from is not stored."""

    def __init__(self, id_: str, kept: str) -> None:
        super().__init__("previous_response_id", id_, f"there is no such reply; {kept}")


class ContextLengthError(ConfigError):
    """Prompt and output do not fit into the context. Agents that compact know the errors of OpenAI and of Anthropic by
    how they begin."""

    def __init__(self, prompt: int, output: int | None, longest: int, at_least: bool = False) -> None:
        wanted = "" if output is None else f" and {output} of output are wanted"
        super().__init__(
            "prompt" if prompt >= longest else "max_tokens",
            prompt if prompt >= longest else output,
            f"This model's maximum context length is {longest} tokens. However, "
            f"the prompt has {'at least ' * at_least}{prompt} tokens{wanted}.",
        )
        if prompt >= longest:
            self.anthropic = f"prompt is too long: {prompt} tokens > {longest} maximum"
        else:
            asked = f"{prompt} + {output} > {longest}"
            self.anthropic = f"input length and `max_tokens` exceed context limit: {asked}, decrease one of them"


class AbortedError(Exception):
    """The server ended a sequence, and the dialect has no finish reason for it."""


class NotKeptError(Exception):
    """A turn could not be written to disk, where it has to be before the client receives it."""


class ErrorDetail(BaseModel):
    """The error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


class AnthropicDetail(BaseModel):
    """The error."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """The body of every error below `ANTHROPIC`."""

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
    anthropic: str = ""
    """The message in Anthropic's dialect, where it is another."""

    @property
    def body(self) -> dict[str, Any]:
        """Its JSON; a client's text may have lone surrogates, which UTF-8 cannot encode."""
        message, param = _printable(self.message), _printable(self.param or "")
        return {"error": {"message": message, "type": self.kind, "param": param or None, "code": self.code}}

    @property
    def name(self) -> str:
        """The most specific of its names."""
        return self.code or self.kind

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """Its JSON in Anthropic's shape."""
        kind = ANTHROPIC_KINDS.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": _printable(self.anthropic or self.message)}}


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def problem_of(error: Exception) -> Problem:
    """Returns the reply to a client for an exception."""
    match error:
        case RequestValidationError():
            return _invalid(error)
        case UnknownModelError():
            return Problem(404, INVALID, f"model: {error.accepted}", "model", "model_not_found")
        case UnknownReplyError():
            message = f"{error.field}: {error.accepted}"
            return Problem(404, INVALID, message, error.field, "previous_response_not_found")
        case ContextLengthError():
            return Problem(
                400, INVALID, error.accepted, error.field, "context_length_exceeded", anthropic=error.anthropic
            )
        case ConfigError():
            param = FIELDS.get(error.field, error.field)
            return Problem(400, INVALID, f"{param}: {error.accepted}", param)
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
        case NotKeptError():
            return Problem(503, OVERLOADED, str(error), code=NOT_KEPT)
        case CheckpointError():
            return Problem(500, FAULT, str(error), code=NOT_FINITE)
        case RemoteError():
            return Problem(503, OVERLOADED, str(error), code=ENGINE_FAILED)
        case ClosedError():
            return Problem(503, OVERLOADED, "the server is shutting down")
        case _:
            return Problem(500, FAULT, f"{type(error).__name__}: {error}")


def answer_at(scope: Scope, error: Exception) -> JSONResponse:
    """Returns an error in the shape of the dialect that a request speaks, and notes it for the log."""
    problem = problem_of(error)
    record_of(scope).error = problem.name
    body = problem.anthropic_body if speaks_anthropic(scope) else problem.body
    return JSONResponse(body, problem.status, getattr(error, "headers", None))


def add_error_handlers(app: FastAPI) -> None:
    """Renders every error in one shape."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return answer_at(request.scope, error)

    kinds = (
        RequestValidationError, ConfigError, GrammarError, RecursionError, UnicodeEncodeError, HTTPException,
        AbortedError, RateLimitError, NotKeptError, RemoteError,
    )  # fmt: skip
    for kind in (*kinds, QueueFullError, ClosedError, Exception):
        app.add_exception_handler(kind, answer)


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is of Anthropic's dialect, by its route or, where dialects share one, by its header."""
    path = scope["path"]
    return path.startswith(ANTHROPIC) or (path.startswith("/v1/models") and "anthropic-version" in Headers(scope=scope))


def _invalid(error: RequestValidationError) -> Problem:
    """Names the first wrong field, with all types that it accepts."""
    errors = error.errors()
    path = _path(errors[0])
    reasons = []
    for each in errors:
        if _path(each)[:1] == path[:1]:
            reasons.append(_reason(each))
    first, *others = dict.fromkeys(reasons)
    reason = "; ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    param = path[0] if path else None
    inside = f" (at {'.'.join(path)})" if len(path) > 1 else ""
    return Problem(400, INVALID, f"{param or 'body'}: {reason[: 5 * SHOWN]}{inside[:SHOWN]}", param)


def _reason(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "this server does not know the field"
        case "union_tag_invalid":
            return f"Input should be {error['ctx']['expected_tags']}, not {error['ctx']['tag'][:SHOWN]!r}"
        case _:
            return str(error["msg"])


def _path(error: Any) -> list[str]:
    """Returns where in the body an error is, the field first, without pydantic's names of types."""
    path: list[int | str] = list(error["loc"][1:])
    if not path or isinstance(path[0], int):  # a place in malformed JSON
        return []
    return [path[0], *(str(part) for part in path[1:] if isinstance(part, int) or part.isidentifier())]


RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request is wrong"},
    401: {"model": ErrorBody, "description": "A key is needed"},
    404: {"model": ErrorBody, "description": "Not found"},
    408: {"model": ErrorBody, "description": "The body was not received in time"},
    413: {"model": ErrorBody, "description": "The body is too large"},
    429: {"model": ErrorBody, "description": "The rate limit of the key is exceeded"},
    500: {"model": ErrorBody, "description": "A fault of the server"},
    503: {"model": ErrorBody, "description": "Too many requests wait, or the server is shutting down"},
}
"""Errors of every route, for the OpenAPI document."""
ANTHROPIC_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {**response, "model": AnthropicError} for status, response in RESPONSES.items()
}


def responses_with_stream(
    reply: type[BaseModel], others: dict[int | str, dict[str, Any]] = RESPONSES
) -> dict[int | str, dict[str, Any]]:
    """Returns the OpenAPI responses of a route that returns a reply or a stream."""
    return {200: {"model": reply, "content": {"text/event-stream": {}}}, **others}
