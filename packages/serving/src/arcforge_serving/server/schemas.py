"""Replies as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length", "tool_calls", "abort"]
"""``abort``: ended by the server, which shuts down, or by whoever controls the engine."""
WeightVersions = list[tuple[int, int]]
"""(version, tokens) spans of a choice's tokens, in order."""


class Reply(BaseModel):
    """Has these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class CachedTokens(Reply):
    """Prompt tokens that were not computed again."""

    cached_tokens: int


class PredictedTokens(Reply):
    """Drafts of the MTP module that were checked. Rejected ones are no completion tokens."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageReply(Reply):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: PredictedTokens


class CompletionLogprobs(Reply):
    """One entry per token; those of a prompt's first token are null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Reply):
    """A text. Token ids and versions come with ``return_token_ids``."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    prompt_token_ids: list[int] = []
    token_ids: list[int] = []
    weight_versions: WeightVersions = []


class Completion(Reply):
    """The reply of ``/v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageReply


class FunctionReply(Reply):
    """A function's name and its arguments as JSON."""

    name: str
    arguments: str


class ToolCallReply(Reply):
    """A call."""

    id: str
    type: Literal["function"]
    function: FunctionReply


class MessageReply(Reply):
    """The assistant's message; reasoning and calls are there when there are any."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str = ""
    tool_calls: list[ToolCallReply] = []


class TopLogprob(Reply):
    """One of the likeliest tokens of a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Reply):
    """One entry per token that was generated, those of reasoning and calls included."""

    content: list[TokenLogprob]


class MetaInfo(Reply):
    """What SGLang says of a choice. Triples of `output_token_logprobs` are (log-prob, token id, null)."""

    finish_reason: dict[str, str | int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str
    output_token_logprobs: list[tuple[float, int, None]] = []


class ChatChoice(Reply):
    """A message. Token ids and versions come with ``return_token_ids``; `token_places` says where the prompt's are."""

    index: int
    message: MessageReply
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    prompt_token_ids: list[int] = []
    token_ids: list[int] = []
    weight_versions: WeightVersions = []
    meta_info: MetaInfo | None = None


class ChatCompletion(Reply):
    """The reply of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    prompt_token_ids: list[int] = []


class ModelCard(Reply):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["arcforge"] = "arcforge"
    max_model_len: int


class ModelList(Reply):
    """All models: one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Status(Reply):
    """How the server is."""

    status: str


class Tokens(Reply):
    """The reply of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Reply):
    """The reply of ``/detokenize``."""

    prompt: str


class PageModel(Reply):
    """What the page at ``/`` offers."""

    name: str
    max_model_len: int
    chat: bool
    no_chat: str
    thinks: bool
