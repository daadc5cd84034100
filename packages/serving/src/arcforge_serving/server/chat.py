"""``/v1/chat/completions``: messages and tools in; reasoning, content and calls out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import Field

from arcforge_core.contracts.chat import Tool
from arcforge_core.errors import ConfigError
from arcforge_serving.server.chat_grammar import turn_matcher
from arcforge_serving.server.chat_writer import ChatWriter
from arcforge_serving.server.common import MOST_TOP, Body, GenerateRequest, Text, TokenId, check_ids
from arcforge_serving.server.errors import responses_with_stream
from arcforge_serving.server.generation import Job
from arcforge_serving.server.guard import GuardedRoute
from arcforge_serving.server.messages import Conversation, template_of
from arcforge_serving.server.openai_reply import OpenAIReply
from arcforge_serving.server.reply import respond
from arcforge_serving.server.schemas import ChatCompletion
from arcforge_serving.server.state import Server, ServerState

router = APIRouter(route_class=GuardedRoute)


class NamedFunction(Body):
    """A tool's name."""

    name: Text


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class Schema(Body):
    """A JSON schema; it is always followed, ``strict`` or not."""

    name: Text
    description: Text | None = None
    schema_: dict[str, Any] = Field(default={}, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """What the content must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class ChatRequest(Conversation, GenerateRequest):
    """The body."""

    max_tokens: int | None = Field(default=None, ge=1, description="default: as many as there is room for")
    max_completion_tokens: int | None = Field(default=None, ge=1, description="the newer name of max_tokens")
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MOST_TOP)
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    prompt_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = Field(
        default=None, description="the rendered prompt, instead of messages"
    )
    input_ids: Annotated[list[TokenId], Field(min_length=1)] | None = Field(
        default=None, description="SGLang's name of prompt_token_ids; messages may stand beside it and are not rendered"
    )
    return_prompt_token_ids: bool = Field(default=False, description="as SGLang: prompt_token_ids in each choice")
    return_meta_info: bool = Field(
        default=False, description="as SGLang: meta_info in each choice, with output_token_logprobs where there are any"
    )
    token_id_style: Literal["vllm", "sglang"] | None = Field(
        default=None, description="where return_token_ids puts the prompt's; default: the server's option"
    )

    @property
    def is_forced(self) -> bool:
        """Whether a tool must be called."""
        return self.tool_choice not in ("auto", "none")

    def callable_tools(self) -> list[Tool]:
        """Returns the tools that may be called. The prompt shows all, or with ``none`` none.

        Raises:
            ConfigError: `tool_choice` asks for what is not there.
        """
        tools = self.known_tools()
        if self.is_forced and not tools:
            raise ConfigError("tool_choice", "given", "there are no tools")
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            tools = [tool for tool in tools if tool.name == name]
            if not tools:
                raise ConfigError("tool_choice", name, f"there is no tool {name!r}")
        return [] if self.tool_choice == "none" else tools


def prompt_of(body: ChatRequest, server: ServerState) -> list[int]:
    """Returns the prompt's token ids, rendered or given.

    Raises:
        ConfigError: there are none, or they are given twice.
    """
    if body.prompt_token_ids is not None and body.input_ids is not None:
        raise ConfigError("input_ids", "given", "prompt_token_ids is given too; they are the same")
    if body.prompt_token_ids is not None and body.messages:
        raise ConfigError("prompt_token_ids", "given", "takes the place of messages; give one of them")
    prompt = body.prompt_token_ids or body.input_ids
    if prompt is None:
        prompt = body.prompt_ids(server, [] if body.tool_choice == "none" else body.known_tools())
    check_ids("prompt_token_ids" if body.input_ids is None else "input_ids", prompt, server)
    return list(prompt)


def prepare(body: ChatRequest, server: ServerState) -> tuple[list[Job], list[Tool]]:
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
    prompt = prompt_of(body, server)
    jobs = body.jobs(
        server,
        [prompt],
        body.max_completion_tokens or body.max_tokens,
        ends=(*template.stop_ids, server.tokenizer.eos_id),
        top_logprobs=body.top_logprobs,
        matcher=turn_matcher(body, server, template, prompt, tools),
    )
    return jobs, tools


@router.post("/v1/chat/completions", responses=responses_with_stream(ChatCompletion))
async def chat_completions(body: ChatRequest, request: Request, server: Server) -> Response:
    """Answers a conversation."""
    jobs, tools = await run_in_threadpool(prepare, body, server)
    writer = ChatWriter(body, jobs, tools, server)
    return await respond(request, server, body, jobs, OpenAIReply(body, jobs, writer, server))
