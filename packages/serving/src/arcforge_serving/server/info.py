"""Routes that generate nothing: models, tokens, health."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import Field

from arcforge_core import __version__
from arcforge_core.errors import ConfigError
from arcforge_serving.server.gate.auth import Level
from arcforge_serving.server.gate.guard import GuardedRoute, declare
from arcforge_serving.server.openai.messages import ConversationFields
from arcforge_serving.server.openai.schemas import (
    AnthropicCard,
    AnthropicList,
    Detokenized,
    ModelCard,
    ModelList,
    Status,
    Tokens,
    Version,
)
from arcforge_serving.server.shared.body import Body, Text, TokenId
from arcforge_serving.server.shared.common import check_ids, check_size
from arcforge_serving.server.shared.errors import RESPONSES, UnknownModelError, speaks_anthropic
from arcforge_serving.server.shared.ignored import ignored_fields, note_ignored
from arcforge_serving.server.shared.state import Server, ServerState

router = APIRouter(responses=RESPONSES, route_class=GuardedRoute)


@router.get("/health", responses={503: {"model": Status}})
@declare(Level.OPEN)
async def health(server: Server) -> JSONResponse:
    """Reports whether the engine works."""
    alive = await run_in_threadpool(lambda: server.engine.alive)  # an external server is asked
    return JSONResponse({"status": "ok" if alive else "engine stopped"}, 200 if alive else 503)


@router.get("/ready", responses={503: {"model": Status}})
@declare(Level.OPEN)
async def ready(server: Server) -> JSONResponse:
    """Reports whether requests are accepted; while the engine is paused they are, and wait."""
    alive = await run_in_threadpool(lambda: server.engine.alive)
    if not alive or server.closing:
        return JSONResponse({"status": "shutting down" if alive else "engine stopped"}, 503)
    paused = await run_in_threadpool(lambda: server.engine.paused)
    return JSONResponse({"status": "paused" if paused else "ready"})


@router.get("/version")
async def version() -> Version:
    """Returns the version of arcforge."""
    return Version(version=__version__)


def _card(server: ServerState) -> ModelCard:
    return ModelCard(id=server.name, root=server.name, created=server.created, max_model_len=server.longest)


def _anthropic_card(server: ServerState) -> AnthropicCard:
    created = datetime.fromtimestamp(server.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AnthropicCard(
        id=server.name, display_name=server.name, created_at=created, max_input_tokens=server.longest,
        max_tokens=server.longest,
    )  # fmt: skip


@router.get("/v1/models")
async def models(request: Request, server: Server) -> ModelList | AnthropicList:
    """Lists the model; in Anthropic's form to requests with its header ``anthropic-version``."""
    if speaks_anthropic(request.scope):
        return AnthropicList(data=[_anthropic_card(server)], first_id=server.name, last_id=server.name)
    return ModelList(data=[_card(server)])


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request, server: Server) -> ModelCard | AnthropicCard:
    """Shows the model; in Anthropic's form to requests with its header ``anthropic-version``."""
    if name != server.name:
        raise UnknownModelError(name, server.name)
    return _anthropic_card(server) if speaks_anthropic(request.scope) else _card(server)


class TokenizeRequest(ConversationFields):
    """A text, or a conversation to render."""

    model: Text | None = None
    prompt: Text | None = None
    add_special_tokens: bool = Field(default=True, description="begin as /v1/completions does")
    add_generation_prompt: bool = Field(default=True, description="begin the assistant's turn")
    return_token_strs: bool = False


def _tokens(body: TokenizeRequest, server: ServerState) -> Tokens:
    _check_model(body.model, server)
    if (body.prompt is None) == (not body.messages):
        raise ConfigError("prompt", body.prompt, "give a prompt or messages")
    tokenizer = server.tokenizer
    if body.prompt is None:
        ids = body.prompt_ids(server, body.known_tools(), generation_prompt=body.add_generation_prompt)
    else:
        check_size("prompt", len(body.prompt), server)
        ids = tokenizer.encode_prompt(body.prompt) if body.add_special_tokens else tokenizer.encode(body.prompt)
    strings = [tokenizer.decode([id_]) for id_ in ids] if body.return_token_strs else None
    return Tokens(count=len(ids), max_model_len=server.longest, tokens=ids, token_strs=strings)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request, server: Server) -> Tokens:
    """Returns the token ids of a text, or of a rendered conversation."""
    note_ignored(request, server, ignored_fields(body))
    return await run_in_threadpool(_tokens, body, server)


class DetokenizeRequest(Body):
    """Token ids."""

    model: Text | None = None
    tokens: list[TokenId]


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, server: Server) -> Detokenized:
    """Returns the text of token ids, with special tokens."""
    _check_model(body.model, server)
    if body.tokens:
        check_ids("tokens", body.tokens, server)
    return Detokenized(prompt=await run_in_threadpool(server.tokenizer.decode, body.tokens))


def _check_model(name: str | None, server: ServerState) -> None:
    if name not in (None, server.name):
        raise UnknownModelError(str(name), server.name)
