"""GLM-5's conversation as spans of text with their authors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from arcforge_core.chat.glm5_format import (
    ASSISTANT,
    CALL_EXAMPLE,
    END_RESPONSE,
    NEEDED,
    RESPONSE,
    ROLE_TOKENS,
    STOPS,
    SYSTEM,
    TOOLS_BEGIN,
    TOOLS_END,
)
from arcforge_core.chat.glm_parser import END_KEY, END_VALUE, KEY, VALUE
from arcforge_core.chat.parser import CALL, END_CALL, END_THINK, THINK, split_reasoning
from arcforge_core.chat.spans import Span
from arcforge_core.chat.values import write_value
from arcforge_core.contracts.chat import TEMPLATE, ChatOptions, Message, Tool
from arcforge_core.errors import ConfigError


def special_span(token: str, author: str = TEMPLATE, message: int = -1, trained: bool = False) -> Span:
    return Span(token, special=True, author=author, message=message, trained=trained)


def tool_spans(tools: Sequence[Tool]) -> Iterator[Span]:
    """Yields the block of tools: one JSON object per line, then how to call them."""
    if not tools:
        return
    lines = "".join(json.dumps(tool.definition, ensure_ascii=False) + "\n" for tool in tools)
    yield special_span(SYSTEM)
    yield Span(TOOLS_BEGIN + lines + TOOLS_END)
    for part in CALL_EXAMPLE:
        yield Span(part, special=part in NEEDED)


def prompt_spans(options: ChatOptions) -> list[Span]:
    """Returns the start of the assistant's turn."""
    return [special_span(ASSISTANT), special_span(THINK if options.enable_thinking else END_THINK)]


def message_spans(messages: Sequence[Message], options: ChatOptions) -> Iterator[Span]:
    """Yields the messages. The role token after an assistant's turn counts as written by the assistant, to end it."""
    for index, message in enumerate(messages):
        before = messages[index - 1].role if index else None
        if not (message.role == "tool" == before):
            token = ROLE_TOKENS[message.role]
            ended = before == "assistant" and token in STOPS
            yield ending_span(messages, index - 1, options, token) if ended else special_span(token, message=index)
        if message.role == "assistant":
            yield from _assistant_spans(messages, index, options)
        elif message.role == "tool":
            yield special_span(RESPONSE, message=index)
            yield Span(message.content, author="tool", message=index)
            yield special_span(END_RESPONSE, message=index)
        else:
            yield Span(message.content, author=message.role, message=index)


def ending_span(messages: Sequence[Message], index: int, options: ChatOptions, token: str) -> Span:
    """Returns the token that ends an assistant's turn, written by the assistant."""
    return special_span(token, "assistant", index, is_trained(messages, index, options))


def _assistant_spans(messages: Sequence[Message], index: int, options: ChatOptions) -> Iterator[Span]:
    """Yields a turn; the prompt owns the text up to the reasoning, the assistant owns the rest."""
    reasoning, content = split_reasoning(messages[index])
    trained = is_trained(messages, index, options)

    def said(text: str) -> Span:
        return Span(text, author="assistant", message=index, trained=trained)

    def tag(token: str) -> Span:
        return special_span(token, "assistant", index, trained)

    if shows_reasoning(messages, index, options):
        yield special_span(THINK, message=index)
        yield said(reasoning.strip())
        yield tag(END_THINK)
    else:
        yield special_span(END_THINK, message=index)
    yield said(content.strip())
    for call in messages[index].tool_calls:
        if not call.name.strip():
            raise ConfigError("tool_calls.name", call.name, "must not be empty")
        yield tag(CALL)
        yield said(call.name)
        for key, value in call.arguments.items():
            yield from (tag(KEY), said(key), tag(END_KEY), tag(VALUE), said(write_value(value)), tag(END_VALUE))
        yield tag(END_CALL)


def shows_reasoning(messages: Sequence[Message], index: int, options: ChatOptions) -> bool:
    """Whether a turn's reasoning is rendered: it has some, and no later user message clears it."""
    current = all(message.role != "user" for message in messages[index + 1 :])
    return bool(split_reasoning(messages[index])[0]) and (current or not options.clear_thinking)


def is_trained(messages: Sequence[Message], index: int, options: ChatOptions) -> bool:
    """Whether a turn is trained: it and its prompt are as they were when it was sampled.

    A later user message clears the reasoning of the turns before it. One that lost its own, or that followed such a
    turn without a user's message between them, is context only.
    """
    if not messages[index].trained:
        return False
    for place in range(index, -1, -1):
        message = messages[place]
        if message.role == "user":
            break
        if message.role == "assistant" and split_reasoning(message)[0]:
            return shows_reasoning(messages, place, options)
    return True
