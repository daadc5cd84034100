"""``/v1/chat/completions``: messages and tools in; reasoning, content and calls out."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from arcforge_core.contracts.chat import Tool
from arcforge_core.errors import ConfigError
from arcforge_serving.server.gate.guard import GuardedRoute
from arcforge_serving.server.openai.chat_grammar import not_guaranteed, turn_matcher
from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.openai.chat_writer import ChatWriter
from arcforge_serving.server.openai.messages import template_of
from arcforge_serving.server.openai.reply import OpenAIReply
from arcforge_serving.server.openai.schemas import ChatCompletion
from arcforge_serving.server.shared.common import check_ids
from arcforge_serving.server.shared.errors import responses_with_stream
from arcforge_serving.server.shared.ignored import Ignored, ignored_fields, note_ignored
from arcforge_serving.server.shared.jobs import Job
from arcforge_serving.server.shared.reply import respond
from arcforge_serving.server.shared.state import Server, ServerState

router = APIRouter(route_class=GuardedRoute)


def prompt_of(body: ChatRequest, server: ServerState) -> list[int]:
    """Returns the prompt's token ids, rendered or given.

    Raises:
        ConfigError: there are none, or they are given twice.
    """
    given = body.given_prompt(bool(body.messages))
    if given is None:
        prompt = body.prompt_ids(server, [] if body.tool_choice == "none" else body.known_tools())
        given = "prompt_token_ids", prompt
    check_ids(*given, server)
    return given[1]


class Prepared(NamedTuple):
    """A chat request that can be served.

    Attributes:
        jobs: its sequences.
        tools: the callable ones.
        not_guaranteed: its constraints that this model's format cannot guarantee.
    """

    jobs: list[Job]
    tools: list[Tool]
    not_guaranteed: list[Ignored]


def prepare(body: ChatRequest, server: ServerState) -> Prepared:
    """Renders and checks a request; may take a while for long conversations and large grammars.

    Raises:
        ConfigError: it cannot be served.
    """
    body.check(server)
    template = template_of(server)
    if body.top_logprobs and not body.logprobs:
        raise ConfigError("top_logprobs", body.top_logprobs, "needs logprobs=true")
    if body.max_tokens and body.max_completion_tokens not in (None, body.max_tokens):
        raise ConfigError("max_tokens", body.max_tokens, "max_completion_tokens says something else")
    tools = body.callable_tools()
    server.turns.check(body.n, body.given_prompt(bool(body.messages)) is not None)
    prompt = prompt_of(body, server)
    jobs = body.jobs(
        server,
        [prompt],
        body.max_completion_tokens or body.max_tokens,
        ends=(*template.stop_ids, server.tokenizer.eos_id),
        top_logprobs=body.top_logprobs,
        matcher=turn_matcher(body, server, template, prompt, tools),
    )
    without = [Ignored(name, name) for name in not_guaranteed(body, server, template, prompt, tools)]
    # the parser reads ids: text is decoded for stop strings alone
    jobs = [replace(job, params=server.turns.params(job.params), text=bool(job.stops)) for job in jobs]
    return Prepared(jobs, tools, without)


@router.post("/v1/chat/completions", responses=responses_with_stream(ChatCompletion))
async def chat_completions(body: ChatRequest, request: Request, server: Server) -> Response:
    """Answers a conversation."""
    note_ignored(request, server, ignored_fields(body))
    jobs, tools, without = await run_in_threadpool(prepare, body, server)
    note_ignored(request, server, without)
    writer = ChatWriter(body, jobs, tools, server)
    return await respond(request, server, body, jobs, OpenAIReply(body, jobs, writer, server))
