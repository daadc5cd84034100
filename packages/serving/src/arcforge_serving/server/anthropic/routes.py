"""``/v1/messages``: Anthropic's dialect of a chat."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from arcforge_serving.server.anthropic.reply import MessagesReply, MessageWriter, TokenCount
from arcforge_serving.server.anthropic.request import CountRequest, MessagesRequest
from arcforge_serving.server.gate.guard import GuardedRoute
from arcforge_serving.server.gate.record import ANTHROPIC
from arcforge_serving.server.openai.chat import Prepared, prepare, prompt_of
from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.shared.errors import ANTHROPIC_RESPONSES, responses_with_stream
from arcforge_serving.server.shared.ignored import ignored_fields, note_ignored
from arcforge_serving.server.shared.reply import respond
from arcforge_serving.server.shared.state import Server, ServerState

router = APIRouter(route_class=GuardedRoute)


@router.post(ANTHROPIC, responses=responses_with_stream(MessagesReply, ANTHROPIC_RESPONSES))
async def messages(body: MessagesRequest, request: Request, server: Server) -> Response:
    """Answers a conversation, as Anthropic does."""
    note_ignored(request, server, ignored_fields(body))
    chat, (jobs, tools, without) = await run_in_threadpool(_prepare, body, server)
    note_ignored(request, server, without)
    return await respond(request, server, chat, jobs, MessageWriter(chat, jobs, tools, server))


def _prepare(body: MessagesRequest, server: ServerState) -> tuple[ChatRequest, Prepared]:
    chat = body.as_chat()
    return chat, prepare(chat, server)


@router.post(f"{ANTHROPIC}/count_tokens", responses=ANTHROPIC_RESPONSES)
async def count_tokens(body: CountRequest, request: Request, server: Server) -> TokenCount:
    """Counts the tokens of the prompt that a conversation becomes."""
    note_ignored(request, server, ignored_fields(body))
    return TokenCount(input_tokens=await run_in_threadpool(_count, body, server))


def _count(body: CountRequest, server: ServerState) -> int:
    chat = body.chat()
    chat.check(server)
    return len(prompt_of(chat, server))
