"""Routes that generate nothing: models, tokens, health."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import Field

from arcforge_core.errors import ConfigError
from arcforge_serving.server.auth import Level
from arcforge_serving.server.common import Body, Text, TokenId, check_ids
from arcforge_serving.server.errors import RESPONSES, UnknownModelError
from arcforge_serving.server.guard import GuardedRoute, declare
from arcforge_serving.server.messages import Conversation
from arcforge_serving.server.schemas import Detokenized, ModelCard, ModelList, Status, Tokens
from arcforge_serving.server.state import Server, ServerState

router = APIRouter(responses=RESPONSES, route_class=GuardedRoute)


@router.get("/health", responses={503: {"model": Status}})
@declare(Level.OPEN)
async def health(server: Server) -> JSONResponse:
    """Says whether the engine works."""
    alive = server.engine.alive
    return JSONResponse({"status": "ok" if alive else "engine stopped"}, 200 if alive else 503)


@router.get("/ready", responses={503: {"model": Status}})
@declare(Level.OPEN)
async def ready(server: Server) -> JSONResponse:
    """Says whether requests are taken: while the engine stands still they are, and wait for it to go on."""
    if not server.engine.alive or server.closing:
        return JSONResponse({"status": "shutting down" if server.engine.alive else "engine stopped"}, 503)
    return JSONResponse({"status": "paused" if server.engine.paused else "ready"})


def _card(server: ServerState) -> ModelCard:
    return ModelCard(id=server.name, created=server.created, max_model_len=server.longest)


@router.get("/v1/models")
async def models(server: Server) -> ModelList:
    """Lists the model."""
    return ModelList(data=[_card(server)])


@router.get("/v1/models/{name:path}")
async def model(name: str, server: Server) -> ModelCard:
    """Shows the model."""
    if name != server.name:
        raise UnknownModelError(name, server.name)
    return _card(server)


class TokenizeRequest(Conversation):
    """A text, or a conversation, which is rendered."""

    model: Text | None = None
    prompt: Text | None = None
    add_special_tokens: bool = Field(default=True, description="a text begins as a document does")
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
        ids = [tokenizer.bos_id] * body.add_special_tokens + tokenizer.encode(body.prompt)
    strings = [tokenizer.decode([id_]) for id_ in ids] if body.return_token_strs else None
    return Tokens(count=len(ids), max_model_len=server.longest, tokens=ids, token_strs=strings)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, server: Server) -> Tokens:
    """Gives the ids of a text, or those of the prompt that a conversation becomes."""
    return await run_in_threadpool(_tokens, body, server)


class DetokenizeRequest(Body):
    """Token ids."""

    model: Text | None = None
    tokens: list[TokenId]


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, server: Server) -> Detokenized:
    """Gives the text of token ids, special tokens written out."""
    _check_model(body.model, server)
    if body.tokens:
        check_ids("tokens", body.tokens, server)
    return Detokenized(prompt=await run_in_threadpool(server.tokenizer.decode, body.tokens))


def _check_model(name: str | None, server: ServerState) -> None:
    if name not in (None, server.name):
        raise UnknownModelError(str(name), server.name)
