"""Every field of the request types of the pinned SDKs is served, ignored or refused on purpose.

A new version of an SDK that adds a field, a type of message or a tool fails here until somebody decides what it means.
"""

import typing
from collections.abc import Iterator

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import input_token_count_params, response_create_params

from arcforge_serving.server.anthropic import request as claude
from arcforge_serving.server.openai import chat_request as chat
from arcforge_serving.server.openai import completions, messages
from arcforge_serving.server.responses import items
from arcforge_serving.server.responses import request as responses
from arcforge_serving.server.shared import common, structured
from arcforge_serving.server.shared.ignored import Refused, is_ignored

HEADERS = {"betas": "sent as a header", "user_profile_id": "sent as a header", "workspace_id": "sent as a header"}
"""Parameters of functions that are no fields of a body."""
NEEDED = {"input": "there are no stored prompts or conversations that could take its place"}
"""Fields that the SDKs' types leave out and this server needs."""

CHAT = {
    "ChatCompletionDeveloperMessageParam": messages.ChatMessage,
    "ChatCompletionSystemMessageParam": messages.ChatMessage,
    "ChatCompletionUserMessageParam": messages.ChatMessage,
    "ChatCompletionAssistantMessageParam": messages.ChatMessage,
    "ChatCompletionToolMessageParam": messages.ChatMessage,
    "ChatCompletionContentPartTextParam": messages.Part,
    "ChatCompletionMessageFunctionToolCallParam": messages.Call,
    "messages.tool_calls.function": messages.Function,
    "ChatCompletionFunctionToolParam": messages.ToolDefinition,
    "FunctionDefinition": messages.FunctionDefinition,
    "ChatCompletionNamedToolChoiceParam": chat.NamedTool,
    "tool_choice.function": chat.NamedFunction,
    "ChatCompletionAllowedToolChoiceParam": chat.AllowedToolChoice,
    "ChatCompletionAllowedToolsParam": chat.AllowedTools,
    "ResponseFormatText": structured.ResponseFormat,
    "ResponseFormatJSONObject": structured.ResponseFormat,
    "ResponseFormatJSONSchema": structured.ResponseFormat,
    "JSONSchema": structured.NamedSchema,
    "ChatCompletionStreamOptionsParam": common.StreamOptions,
}
RESPONSES = {
    "EasyInputMessageParam": items.MessageItem,
    "Message": items.MessageItem,
    "ResponseOutputMessageParam": items.MessageItem,
    "ResponseInputTextParam": items.InputText,
    "ResponseInputTextContentParam": items.InputText,
    "ResponseOutputTextParam": items.InputText,
    "ResponseFunctionToolCallParam": items.CallItem,
    "FunctionCallOutput": items.ResultItem,
    "ResponseReasoningItemParam": items.ReasoningItem,
    "ItemReference": items.ItemReference,
    "input.summary": items.ReasoningText,
    "input.content[ResponseReasoningItemParam]": items.ReasoningText,
    "FunctionToolParam": responses.FunctionTool,
    "ToolChoiceFunctionParam": responses.NamedFunction,
    "ToolChoiceAllowedParam": responses.AllowedFunctions,
    "ResponseTextConfigParam": responses.TextOptions,
    "ResponseFormatText": responses.TextFormat,
    "ResponseFormatJSONObject": responses.TextFormat,
    "ResponseFormatTextJSONSchemaConfigParam": responses.TextFormat,
    "Text": responses.TextOptions,
    "Reasoning": responses.Reasoning,
    "StreamOptions": responses.EventOptions,
}
CLAUDE = {
    "UserMessageParam": claude.UserMessage,
    "AssistantMessageParam": claude.AssistantMessage,
    "SystemMessageParam": claude.SystemMessage,
    "TextBlockParam": claude.TextBlock,
    "ThinkingBlockParam": claude.ThinkingBlock,
    "RedactedThinkingBlockParam": claude.RedactedThinking,
    "ToolUseBlockParam": claude.ToolUse,
    "ToolResultBlockParam": claude.ToolResult,
    "ToolParam": claude.CustomTool,
    "ToolChoiceAutoParam": claude.ToolChoice,
    "ToolChoiceAnyParam": claude.ToolChoice,
    "ToolChoiceToolParam": claude.ToolChoice,
    "ToolChoiceNoneParam": claude.ToolChoice,
    "ThinkingConfigEnabledParam": claude.ThinkingSwitch,
    "ThinkingConfigDisabledParam": claude.ThinkingSwitch,
    "ThinkingConfigAdaptiveParam": claude.ThinkingSwitch,
    "ThinkingConfigBetweenToolsParam": claude.ThinkingSwitch,
    "OutputConfigParam": claude.OutputConfig,
    "JSONOutputFormatParam": claude.JsonFormat,
    "MetadataParam": claude.Metadata,
}
"""Types of the SDKs, by name or by where they are, and our classes."""

NO_MEDIA = "the model reads text only"
NO_TOOLS = "a tool that runs on the service's side, or its traces"
REFUSED_TYPES = {
    "ChatCompletionContentPartImageParam": NO_MEDIA,
    "ChatCompletionContentPartInputAudioParam": NO_MEDIA,
    "File": NO_MEDIA,
    "ChatCompletionContentPartRefusalParam": "read as a text; see Part",
    "ChatCompletionFunctionMessageParam": "the older form of tool messages",
    "ChatCompletionMessageCustomToolCallParam": "tools whose input is no JSON",
    "ChatCompletionCustomToolParam": "tools whose input is no JSON",
    "ChatCompletionNamedToolChoiceCustomParam": "tools whose input is no JSON",
    "ResponseOutputRefusalParam": "read as a text; see Part",
    "ResponseInputImageParam": NO_MEDIA,
    "ResponseInputImageContentParam": NO_MEDIA,
    "ResponseInputFileParam": NO_MEDIA,
    "ResponseInputFileContentParam": NO_MEDIA,
    "InputSchemaTyped": "not refused: any JSON schema is taken",
    "ImageBlockParam": NO_MEDIA,
    "DocumentBlockParam": NO_MEDIA,
    "SearchResultBlockParam": NO_TOOLS,
    "ResponseConfigurationUpdateItemParamParam": "fields of a request hold for all of it",
    "AdditionalTools": "tools are given with the request",
    "RequestDocumentBlockParam": NO_MEDIA,
    "FallbackBlockParam": "there is one model",
    "CompactionBlockParam": "conversations are compacted by the client",
    "ResponseCompactionItemParamParam": "conversations are compacted by the client",
    "CompactionTrigger": "conversations are compacted by the client",
}
REFUSED_WORDS = (
    "Search", "Computer", "Program", "ImageGeneration", "CodeInterpreter", "Shell", "ApplyPatch", "Mcp", "Custom",
    "Namespace", "ToolChoiceTypes", "Bash", "CodeExecution", "Browser", "Memory", "TextEditor", "WebFetch",
    "ServerToolUse", "ContainerUpload", "ToolReference", "Advisor", "MCP", "RequestTool",
)  # fmt: skip
"""Parts of names of `NO_TOOLS`."""


def typed_dicts(annotation: typing.Any) -> Iterator[type]:
    if hasattr(annotation, "__total__"):
        yield annotation
    else:
        for part in typing.get_args(annotation):
            yield from typed_dicts(part)


def is_required(theirs, name) -> bool:
    return typing.get_origin(typing.get_type_hints(theirs, include_extras=True)[name]) is typing.Required


def undecided(theirs, ours, pairs, path="", owner="") -> Iterator[str]:
    """Yields the fields and types of an SDK that we have no answer to."""
    fields = {field.alias or name: field for name, field in ours.model_fields.items()}
    for name, annotation in typing.get_type_hints(theirs).items():
        where = f"{path}{name}"
        if path == "" and name in HEADERS and name not in fields:
            continue
        if name not in fields:
            yield f"{where} of {owner or theirs.__name__}"
            continue
        if fields[name].is_required() and not is_required(theirs, name) and where not in NEEDED:
            yield f"{where} of {owner or theirs.__name__} may be left out"
        if is_ignored(fields[name]) or any(isinstance(each, Refused) for each in fields[name].metadata):
            continue
        for part in typed_dicts(annotation):
            kind = part.__name__.removeprefix("Beta")
            pair = pairs.get(f"{where}[{theirs.__name__}]") or pairs.get(where) or pairs.get(kind)
            if pair is not None:
                yield from undecided(part, pair, pairs, f"{where}.", kind)
            elif kind not in REFUSED_TYPES and not any(word in kind for word in REFUSED_WORDS):
                yield f"{kind} in {where}"


@pytest.mark.parametrize(("theirs", "ours", "pairs"), [
    (chat_params.CompletionCreateParamsNonStreaming, chat.ChatRequest, CHAT),
    (completion_create_params.CompletionCreateParamsNonStreaming, completions.CompletionRequest, CHAT),
    (response_create_params.ResponseCreateParamsNonStreaming, responses.ResponsesRequest, RESPONSES),
    (input_token_count_params.InputTokenCountParams, responses.CountRequest, RESPONSES),
    (message_create_params.MessageCreateParamsNonStreaming, claude.MessagesRequest, CLAUDE),
    (message_count_tokens_params.MessageCountTokensParams, claude.CountRequest, CLAUDE),
    (beta_params.MessageCreateParamsNonStreaming, claude.MessagesRequest, CLAUDE),
])  # fmt: skip
def test_every_field_is_decided(theirs, ours, pairs):
    assert sorted(set(undecided(theirs, ours, pairs))) == []


def test_the_walk_finds_what_is_new():
    class Theirs(typing.TypedDict, total=False):
        model: str
        invented: int

    assert list(undecided(Theirs, chat.ChatRequest, CHAT)) == ["invented of Theirs"]


def test_the_walk_finds_what_need_not_be_given():
    class Theirs(typing.TypedDict, total=False):
        model: str

    assert list(undecided(Theirs, claude.MessagesRequest, CLAUDE)) == ["model of Theirs may be left out"]
