"""Replies of ``/v1/responses`` as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from arcforge_serving.server.openai.schemas import CachedTokens, ReplyModel, WeightVersions

Status = Literal["in_progress", "completed", "incomplete"]


class ReasoningPart(ReplyModel):
    """A part of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningOutput(ReplyModel):
    """Reasoning."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    content: list[ReasoningPart]
    status: Status


class TextPart(ReplyModel):
    """A part of a text."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class MessageOutput(ReplyModel):
    """A text."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    content: list[TextPart]
    status: Status


class CallOutput(ReplyModel):
    """A call."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class ReasoningTokens(ReplyModel):
    """Tokens before the first of text and calls."""

    reasoning_tokens: int


class ResponseUsage(ReplyModel):
    """Tokens."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Incomplete(ReplyModel):
    """Why the end is missing."""

    reason: Literal["max_output_tokens"]


class ResponseReply(ReplyModel):
    """The reply, with what it was asked for. Token ids and versions come with ``return_token_ids``."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[ReasoningOutput | MessageOutput | CallOutput]
    error: None
    incomplete_details: Incomplete | None
    usage: ResponseUsage
    instructions: str | None
    previous_response_id: str | None
    store: bool
    max_output_tokens: int | None
    temperature: float
    top_p: float
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    truncation: Literal["disabled"]
    reasoning: dict[str, Any]
    background: Literal[False]
    metadata: dict[str, Any]
    user: str | None
    prompt_token_ids: list[int] = Field(default=[])
    token_ids: list[int] = Field(default=[])
    weight_versions: WeightVersions = Field(default=[])


class Deleted(ReplyModel):
    """A reply was forgotten."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(ReplyModel):
    """Tokens of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ItemList(ReplyModel):
    """Items of the input of a reply."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool
