"""``/v1/messages``: Anthropic's dialect of a chat."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from arcforge_core.contracts.chat import Tool
from arcforge_serving.server.access import ANTHROPIC
from arcforge_serving.server.chat import ChatRequest, prepare, prompt_of
from arcforge_serving.server.dialects.anthropic_reply import MessageReply, MessageWriter, TokenCount
from arcforge_serving.server.dialects.anthropic_request import CountRequest, MessagesRequest
from arcforge_serving.server.errors import ANTHROPIC_RESPONSES, responses_with_stream
from arcforge_serving.server.generation import Job
from arcforge_serving.server.guard import GuardedRoute
from arcforge_serving.server.reply import respond
from arcforge_serving.server.state import Server, ServerState

router = APIRouter(route_class=GuardedRoute)


@router.post(ANTHROPIC, responses=responses_with_stream(MessageReply, ANTHROPIC_RESPONSES))
async def messages(body: MessagesRequest, request: Request, server: Server) -> Response:
    """Answers a conversation, as Anthropic does."""
    chat, jobs, tools = await run_in_threadpool(_prepare, body, server)
    return await respond(request, server, chat, jobs, MessageWriter(chat, jobs, tools, server))


def _prepare(body: MessagesRequest, server: ServerState) -> tuple[ChatRequest, list[Job], list[Tool]]:
    chat = body.as_chat()
    return chat, *prepare(chat, server)


@router.post(f"{ANTHROPIC}/count_tokens", responses=ANTHROPIC_RESPONSES)
async def count_tokens(body: CountRequest, server: Server) -> TokenCount:
    """Counts the tokens of the prompt that a conversation becomes."""
    return TokenCount(input_tokens=await run_in_threadpool(_count, body, server))


def _count(body: CountRequest, server: ServerState) -> int:
    chat = body.chat()
    chat.check(server)
    return len(prompt_of(chat, server))
