"""``/v1/responses``: OpenAI's newer dialect of a chat."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from arcforge_core.contracts.chat import Tool
from arcforge_serving.server.chat import ChatRequest, prepare
from arcforge_serving.server.dialects.response_store import Stored
from arcforge_serving.server.dialects.responses_reply import ResponseWriter
from arcforge_serving.server.dialects.responses_request import ResponsesRequest, said
from arcforge_serving.server.dialects.responses_schemas import Deleted, ResponseReply
from arcforge_serving.server.errors import RESPONSES, UnknownReplyError, responses_with_stream
from arcforge_serving.server.generation import Job
from arcforge_serving.server.guard import GuardedRoute
from arcforge_serving.server.reply import Json, respond
from arcforge_serving.server.state import Server, ServerState

router = APIRouter(route_class=GuardedRoute)


@router.post("/v1/responses", responses=responses_with_stream(ResponseReply))
async def responses(body: ResponsesRequest, request: Request, server: Server) -> Response:
    """Answers a conversation, as items."""
    owner = request.state.owner
    messages = [*_before(body, server, owner), *body.new_messages()]
    chat, jobs, tools = await run_in_threadpool(_prepare, body, messages, server)

    def keep(response: Json) -> None:
        if body.store:
            server.responses.put(owner, [*messages, *said(response["output"])], response)

    writer = ResponseWriter(body, chat, jobs, tools, server, keep)
    return await respond(request, server, chat, jobs, writer)


def _before(body: ResponsesRequest, server: ServerState, owner: str) -> list[Json]:
    """Returns the messages up to the reply that a request goes on from."""
    if body.previous_response_id is None:
        return []
    stored = server.responses.get(body.previous_response_id, owner)
    if stored is None:
        kept = f"this server keeps the last {server.responses.most // 2**20} MiB of them (responses_mb)"
        raise UnknownReplyError(body.previous_response_id, kept)
    return stored.messages


def _prepare(
    body: ResponsesRequest, messages: list[Json], server: ServerState
) -> tuple[ChatRequest, list[Job], list[Tool]]:
    chat = body.as_chat(messages)
    return chat, *prepare(chat, server)


@router.get("/v1/responses/{id}", responses={**RESPONSES, 200: {"model": ResponseReply}})
async def retrieve(id: str, request: Request, server: Server) -> JSONResponse:
    """Shows a reply that is kept."""
    return JSONResponse(_known(id, request, server).response)


@router.delete("/v1/responses/{id}", responses=RESPONSES)
async def delete(id: str, request: Request, server: Server) -> Deleted:
    """Forgets a reply."""
    _known(id, request, server)
    server.responses.drop(id, request.state.owner)
    return Deleted(id=id)


def _known(id_: str, request: Request, server: ServerState) -> Stored:
    stored = server.responses.get(id_, request.state.owner)
    if stored is None:
        raise HTTPException(404, "there is no such response; the oldest are forgotten first")
    return stored
