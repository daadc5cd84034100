"""Replies as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length", "tool_calls", "abort"]
"""``abort``: ended by a shutdown or by an admin."""
WeightVersions = list[tuple[int, int]]
"""(version, tokens) spans of a choice's tokens, in order."""


class ReplyModel(BaseModel):
    """Base of replies; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class CachedTokens(ReplyModel):
    """Prompt tokens that were not computed again."""

    cached_tokens: int


class PredictedTokens(ReplyModel):
    """Drafts of the MTP module that were checked (rejected ones are no completion tokens), and a chat's reasoning."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int = 0


class UsageReply(ReplyModel):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: PredictedTokens


class CompletionLogprobs(ReplyModel):
    """One entry per token; those of a prompt's first token are null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ReplyModel):
    """A text. Token ids and versions come with ``return_token_ids``."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    prompt_token_ids: list[int] = []
    token_ids: list[int] = []
    weight_versions: WeightVersions = []


class Completion(ReplyModel):
    """The reply of ``/v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageReply


class FunctionReply(ReplyModel):
    """A function's name and its arguments as JSON."""

    name: str
    arguments: str


class ToolCallReply(ReplyModel):
    """A call."""

    id: str
    type: Literal["function"]
    function: FunctionReply


class MessageReply(ReplyModel):
    """The assistant's message; reasoning and calls are there when there are any."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str = ""
    tool_calls: list[ToolCallReply] = []


class TopLogprob(ReplyModel):
    """One of the most likely tokens of a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(ReplyModel):
    """One entry per token that was generated, those of reasoning and calls included."""

    content: list[TokenLogprob]


class MetaInfo(ReplyModel):
    """SGLang's description of a choice. Triples in `output_token_logprobs` are (log-prob, token id, null)."""

    finish_reason: dict[str, str | int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str
    output_token_logprobs: list[tuple[float, int, None]] = []


class ChatChoice(ReplyModel):
    """A message. Token ids and versions come with ``return_token_ids``; `token_ids` says where the prompt's are."""

    index: int
    message: MessageReply
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    prompt_token_ids: list[int] = []
    token_ids: list[int] = []
    weight_versions: WeightVersions = []
    meta_info: MetaInfo | None = None


class ChatCompletion(ReplyModel):
    """The reply of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    prompt_token_ids: list[int] = []


class ModelCard(ReplyModel):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["arcforge"] = "arcforge"
    root: str
    max_model_len: int


class ModelList(ReplyModel):
    """All models: one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class AnthropicCard(ReplyModel):
    """A model as Anthropic shows it; `max_tokens` is what prompt and output have together."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class AnthropicList(ReplyModel):
    """All models as Anthropic shows them: one."""

    data: list[AnthropicCard]
    has_more: bool = False
    first_id: str
    last_id: str


class Status(ReplyModel):
    """The state of the server."""

    status: str


class Version(ReplyModel):
    """The version of the server."""

    version: str


class Tokens(ReplyModel):
    """The reply of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(ReplyModel):
    """The reply of ``/detokenize``."""

    prompt: str


class PageModel(ReplyModel):
    """The model as the page at ``/`` shows it."""

    name: str
    max_model_len: int
    chat: bool
    no_chat: str
    thinks: bool
    suggestions: list[str] = []
    tools: list[str] = []
    lesson: bool = False
    base: bool = False
