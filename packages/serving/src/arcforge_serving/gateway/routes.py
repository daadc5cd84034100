"""``/sessions``: a trainer opens a session, hands URL or secret to an agent, and takes the recorded tokens."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import Field
from pydantic_core import to_json
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.imposed import imposed_of
from arcforge_serving.gateway.paths import key_of
from arcforge_serving.gateway.session import AgentSession
from arcforge_serving.gateway.sessions import Sessions
from arcforge_serving.server.gate.auth import Level
from arcforge_serving.server.gate.guard import GuardedRoute, credential, declare
from arcforge_serving.server.openai.schemas import ReplyModel
from arcforge_serving.server.shared.body import Body, Metadata
from arcforge_serving.server.shared.errors import RESPONSES
from arcforge_serving.server.shared.state import Server

router = APIRouter(route_class=GuardedRoute)
JSON = "application/json"
RETURNED = {**RESPONSES, 200: {"description": "The record, `SessionRecord.as_json`"}}


class OpenRequest(Body):
    """Options of a session; those that are not given are the server's."""

    match: Literal["strict", "loose"] | None = None
    fork_threshold_tokens: int | None = Field(default=None, ge=0)
    max_turns: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    final_turn: bool | None = None
    metadata: Metadata = Field(default={}, description="returned with the record")
    temperature: float | None = Field(
        default=None, ge=0.0, allow_inf_nan=False, description="of all turns, whatever the client asks for"
    )
    sampled_logprobs: bool = Field(default=False, description="record log-probs at that temperature")
    max_new_tokens: int | None = Field(default=None, ge=1, description="of a turn at most")
    seed: str | None = Field(default=None, description="prefix of the seeds of all turns")
    chat_template_kwargs: dict[Literal["enable_thinking", "clear_thinking"], bool] | None = Field(
        default=None, description="of all turns, in place of the client's"
    )

    def options(self) -> dict[str, Any]:
        """Returns the given fields of `GatewayConfig`."""
        names = {each.name for each in fields(GatewayConfig)}
        return {name: value for name, value in self if name in names and value is not None}


class Opened(ReplyModel):
    """An open session.

    `url` is the base URL of Anthropic's clients, `url` + ``/v1`` that of OpenAI's, with any key. Or `secret` is the key
    of a client whose base URL is the server's own.
    """

    id: str
    url: str
    secret: str


async def sessions_of(request: Request) -> Sessions:
    """Returns the sessions of the application."""
    found: Sessions = request.app.state.sessions
    return found


Open = Annotated[Sessions, Depends(sessions_of)]


async def mine(id: str, request: Request, server: Server, sessions: Open) -> AgentSession:
    """Returns a session to whoever has its secret, or the key that opened it.

    Raises:
        HTTPException: 404, 401 or 403.
    """
    by_key, session = sessions.of_key(key_of(request.headers)), sessions.find(id)
    if by_key is None and server.guard.keys.owner(credential(request.headers), Level.USER) == session.owner:
        return session
    if by_key is not session:
        raise HTTPException(403, "the key is another session's" if by_key else "another key opened this session")
    return session


Mine = Annotated[AgentSession, Depends(mine)]


@router.post("/sessions", responses=RESPONSES)
async def open_session(body: OpenRequest, request: Request, sessions: Open) -> Opened:
    """Opens a session."""
    session = sessions.open(request.state.owner, body.metadata, imposed_of(dict(body)), **body.options())
    return Opened(id=session.id, url=f"{request.base_url}sessions/{session.id}", secret=session.secret)


@router.get("/sessions/{id}", responses=RETURNED)
@declare(Level.OPEN)
async def read_session(session: Mine) -> Response:
    """Returns what was recorded so far."""
    return Response(await run_in_threadpool(_written, session), media_type=JSON)


@router.delete("/sessions/{id}", responses=RETURNED)
@declare(Level.OPEN)
async def close_session(session: Mine, sessions: Open) -> Response:
    """Ends the session's running turns, closes it, and returns what was recorded."""
    sessions.close(session)
    forget = None if session.file is None else BackgroundTask(session.file.delete)  # after the record was sent
    return Response(await run_in_threadpool(_written, session), media_type=JSON, background=forget)


def _written(session: AgentSession) -> bytes:
    return to_json(session.record().as_json())  # faster than `json`, which matters for thousands of numbers
