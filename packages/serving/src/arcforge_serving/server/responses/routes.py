"""``/v1/responses``: OpenAI's newer dialect of a chat."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from arcforge_core.errors import ConfigError
from arcforge_serving.server.gate.guard import GuardedRoute
from arcforge_serving.server.openai.chat import Prepared, prepare, prompt_of
from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.responses.reply import ResponseWriter
from arcforge_serving.server.responses.request import CountRequest, Prompt, ResponsesRequest, said
from arcforge_serving.server.responses.schemas import Deleted, InputTokens, ItemList, ResponseReply
from arcforge_serving.server.shared.errors import RESPONSES, UnknownReplyError, responses_with_stream
from arcforge_serving.server.shared.ignored import ignored_fields, note_ignored
from arcforge_serving.server.shared.reply import respond
from arcforge_serving.server.shared.response_store import Stored
from arcforge_serving.server.shared.state import Server, ServerState
from arcforge_serving.server.shared.usage import Json

router = APIRouter(route_class=GuardedRoute)


@router.post("/v1/responses", responses=responses_with_stream(ResponseReply))
async def responses(body: ResponsesRequest, request: Request, server: Server) -> Response:
    """Generates the reply to a conversation, as items."""
    owner = request.state.owner
    note_ignored(request, server, ignored_fields(body))
    body.resolve(lambda id_: server.responses.item(id_, owner))
    messages = [*_before(body, server, owner), *body.new_messages()]
    chat, (jobs, tools, without) = await run_in_threadpool(_prepare, body, messages, server)
    note_ignored(request, server, without)

    def keep(response: Json) -> None:
        if body.store:
            server.responses.put(owner, [*messages, *said(response["output"])], response, body.new_items())

    writer = ResponseWriter(body, chat, jobs, tools, server, keep)
    return await respond(request, server, chat, jobs, writer)


def _before(body: Prompt, server: ServerState, owner: str) -> list[Json]:
    """Returns the messages up to the reply that a request continues."""
    if body.previous_response_id is None:
        return []
    stored = server.responses.get(body.previous_response_id, owner)
    if stored is None:
        raise UnknownReplyError(body.previous_response_id, server.responses.bound)
    return stored.messages


def _prepare(body: ResponsesRequest, messages: list[Json], server: ServerState) -> tuple[ChatRequest, Prepared]:
    chat = body.as_chat(messages)
    return chat, prepare(chat, server)


@router.post("/v1/responses/input_tokens", responses=RESPONSES)
async def input_tokens(body: CountRequest, request: Request, server: Server) -> InputTokens:
    """Counts the tokens of the prompt that a conversation becomes."""
    note_ignored(request, server, ignored_fields(body))
    owner = request.state.owner
    body.resolve(lambda id_: server.responses.item(id_, owner))
    messages = [*_before(body, server, owner), *body.new_messages()]
    return InputTokens(input_tokens=await run_in_threadpool(_count, body, messages, server))


def _count(body: CountRequest, messages: list[Json], server: ServerState) -> int:
    chat = body.chat(messages)
    chat.check(server)
    return len(prompt_of(chat, server))


@router.get("/v1/responses/{id}/input_items", responses=RESPONSES)
async def input_items(
    id: str,
    request: Request,
    server: Server,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> ItemList:
    """Lists the input that came with the request of a stored reply."""
    items = list(_known(id, request, server).items)
    items = items if order == "asc" else items[::-1]
    names = [item["id"] for item in items]
    if after is not None and after not in names:
        raise ConfigError("after", after, f"there is no such item of {id}")
    first = 0 if after is None else names.index(after) + 1
    page = items[first : first + limit]
    ends = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return ItemList(data=page, first_id=ends[0], last_id=ends[1], has_more=first + limit < len(items))


@router.get("/v1/responses/{id}", responses={**RESPONSES, 200: {"model": ResponseReply}})
async def retrieve(id: str, request: Request, server: Server) -> JSONResponse:
    """Returns a stored reply."""
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
        raise HTTPException(404, f"Response with id {id_[:100]!r} not found. The oldest are forgotten first")
    return stored
