"""Whether a conversation follows the protocol: order of roles, calls, their results and their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arcforge_core.chat.values import JSON_TYPES, permitted_types
from arcforge_core.contracts.chat import Message, ToolCall
from arcforge_core.contracts.conversation import OFF, Conversation
from arcforge_core.data.conversations.parse import tools_by_name
from arcforge_core.tokenizer.tokenizer import SPECIAL_TOKENS

FOREIGN_TAGS = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "[INST]", "[/INST]")
TAGS = (*SPECIAL_TOKENS, *FOREIGN_TAGS)
"""Template tags that must not occur in a message: a rendering was mistaken for text."""


def format_flaw(conversation: Conversation) -> str | None:
    """Returns the first flaw of a conversation; None if it is well-formed.

    Messages that are excluded from the loss may call tools that do not exist: that is why they are errors.
    """
    return next(_flaws(conversation), None)


def _flaws(conversation: Conversation) -> Iterator[str]:
    messages = conversation.messages
    if not any(message.role == "assistant" and message.trained for message in messages):
        yield "no assistant message is trained on"
    for index, message in enumerate(messages):
        before = messages[index - 1] if index else None
        if message.role == "assistant":
            yield from _answer_flaws(conversation, index, before)
        elif message.role == "tool" and (before is None or not (before.role == "tool" or before.tool_calls)):
            yield f"messages[{index}] is a result without a call"
    yield from _result_flaws(messages)


def _answer_flaws(conversation: Conversation, index: int, before: Message | None) -> Iterator[str]:
    message = conversation.messages[index]
    if before is not None and before.role == "assistant":
        yield f"messages[{index}] is the second assistant message in a row"
    if not message.trained:
        return
    if message.reasoning and conversation.mode == OFF:
        yield f"messages[{index}] has reasoning, but thinking is off"
    if not message.content.strip() and not message.tool_calls:
        yield f"messages[{index}] is empty"
    said = f"{message.reasoning or ''}\n{message.content}"
    for tag in TAGS:
        if tag in said:
            yield f"messages[{index}] has {tag} in its text"
    for call in message.tool_calls:
        yield from (f"messages[{index}] {flaw}" for flaw in call_flaws(call, conversation))


def call_flaws(call: ToolCall, conversation: Conversation) -> Iterator[str]:
    """Yields the flaws of a call: its tool, and its arguments by the schema's outermost level."""
    tool = tools_by_name(conversation.tools).get(call.name)
    if tool is None:
        yield f"calls {call.name!r}, which is not a tool of the conversation"
        return
    properties: Any = tool.parameters.get("properties") or {}
    for name in tool.parameters.get("required") or ():
        if name not in call.arguments:
            yield f"calls {call.name} without {name}"
    for name, value in call.arguments.items():
        if name not in properties:
            if properties and tool.parameters.get("additionalProperties") is not True:
                yield f"calls {call.name} with {name}, which it does not accept"
            continue
        permitted = permitted_types(properties[name], tool.parameters)
        found = JSON_TYPES.get(type(value))
        if found not in permitted and not (found == "integer" and "number" in permitted):
            yield f"calls {call.name} with {name} of type {found}, not {' or '.join(sorted(permitted))}"


def _result_flaws(messages: tuple[Message, ...]) -> Iterator[str]:
    """Yields calls and results that do not match; calls at the very end may lack results."""
    for index, message in enumerate(messages):
        if not message.tool_calls or index == len(messages) - 1:
            continue
        results = []
        for later in messages[index + 1 :]:
            if later.role != "tool":
                break
            results.append(later)
        if len(results) != len(message.tool_calls):
            yield f"messages[{index}] makes {len(message.tool_calls)} calls, but {len(results)} results follow"
            continue
        wanted = {call.id for call in message.tool_calls} - {None}
        given = {result.tool_call_id for result in results} - {None}
        if wanted and given and wanted != given:
            yield f"messages[{index}]: the results' ids differ from those of the calls"
