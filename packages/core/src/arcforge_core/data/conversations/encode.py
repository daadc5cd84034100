"""Conversations to tokens with a loss mask; long ones are cut at the end of a turn or dropped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from arcforge_core.chat.parser import split_reasoning
from arcforge_core.contracts.chat import ChatTemplate, Rendered
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.contracts.data import Example
from arcforge_core.errors import ConfigError


@dataclass(frozen=True)
class LengthLimits:
    """Length limits of an example.

    Attributes:
        max_tokens: maximum number of tokens.
        min_trained: minimum number of targets.
        cut: cut longer examples after the last turn that fits, instead of dropping them.
    """

    max_tokens: int
    min_trained: int
    cut: bool


def turns(conversation: Conversation) -> Iterator[Conversation]:
    """Yields the parts of a conversation to render; each assistant message is trained on in at most one of them.

    Interleaved thinking drops the reasoning before a user message. A conversation with reasoning before its last user
    message therefore gives one part per user message: everything up to the next user message, as the model saw it, with
    only the answers to this message trained on. Any other conversation is one part.
    """
    messages = conversation.messages
    users = [n for n, message in enumerate(messages) if message.role == "user"]
    last = users[-1] if users else 0
    cleared = conversation.options.clear_thinking and any(split_reasoning(m)[0] for m in messages[:last])
    if not cleared:
        yield conversation
        return
    for start, end in itertools.pairwise([*users, len(messages)]):
        seen = tuple(replace(m, trained=m.trained and n >= start) for n, m in enumerate(messages[:end]))
        if any(m.role == "assistant" and m.trained for m in seen):
            yield replace(conversation, messages=seen)


def make_example(conversation: Conversation, template: ChatTemplate, limits: LengthLimits) -> Example:
    """Encodes a conversation, or a part of one.

    Raises:
        BadRecord: the template cannot express it, or it is too long or too short.
    """
    if not template.keeps_reasoning and any(m.reasoning and m.trained for m in conversation.messages):
        raise BadRecord("the chat template does not render reasoning")
    while True:
        rendered = _render(conversation, template)
        if len(rendered) <= limits.max_tokens:
            break
        shorter = _without_last_turn(conversation) if limits.cut else None
        if shorter is None:
            raise BadRecord(f"{len(rendered)} tokens are more than data.max_tokens={limits.max_tokens}")
        conversation = shorter
    trained = list(rendered.trained)
    for index, parts in conversation.parts.items():
        if index < len(conversation.messages):
            _mask_parts(trained, rendered, index, parts, template)
    count = sum(trained)
    if count < limits.min_trained:
        raise BadRecord(f"{count} tokens to train on are fewer than data.min_trained_tokens={limits.min_trained}")
    return Example(rendered.ids, num_bytes(rendered.ids, trained, template), trained=trained)


def _render(conversation: Conversation, template: ChatTemplate) -> Rendered:
    try:
        return template.render(conversation.messages, conversation.tools, conversation.options, end_turn=True)
    except ConfigError as error:
        raise BadRecord(f"the chat template rejects it: {error}") from error


def _without_last_turn(conversation: Conversation) -> Conversation | None:
    """Returns the beginning up to the assistant message before the last one that is trained on."""
    ends = [n for n, message in enumerate(conversation.messages[:-1]) if message.role == "assistant"]
    if not ends:
        return None
    shorter = conversation.messages[: ends[-1] + 1]
    if not any(message.role == "assistant" and message.trained for message in shorter):
        return None
    return replace(conversation, messages=shorter)


def _mask_parts(
    trained: list[bool], rendered: Rendered, index: int, parts: tuple[tuple[str, bool], ...], template: ChatTemplate
) -> None:
    """Removes the untrained parts of a message from the mask; a token across a boundary belongs to the first part.

    Raises:
        BadRecord: the content's tokens do not occur unchanged in the rendering.
    """
    content = "".join(text for text, _ in parts)
    left = len(content) - len(content.lstrip())
    ids, ends = template.tokenizer.encode_with_ends(content.strip())
    places = [
        n for n, message in enumerate(rendered.messages) if message == index and rendered.authors[n] == "assistant"
    ]
    own = [rendered.ids[n] for n in places]
    start = next((n for n in range(len(own) - len(ids), -1, -1) if own[n : n + len(ids)] == ids), None)
    if start is None:
        raise BadRecord(f"messages[{index}]: the content's parts do not occur in the rendering")
    borders = list(itertools.accumulate(len(text) for text, _ in parts))
    beginnings = [0, *(end + 1 for end in ends[:-1])]
    for n, beginning in enumerate(beginnings[: len(ids)]):
        part = next(p for p, border in enumerate(borders) if beginning + left < border)
        if not parts[part][1]:
            trained[places[start + n]] = False


def num_bytes(ids: tuple[int, ...], trained: list[bool], template: ChatTemplate) -> int:
    """Returns the number of UTF-8 bytes that the targets encode; special tokens count 0."""
    targets = np.asarray(ids)[np.asarray(trained, dtype=np.bool_)]
    table_V = template.tokenizer.byte_lengths_V
    if table_V is not None:
        return int(table_V[targets].sum())
    special = set(template.tokenizer.special.values())
    return len(template.tokenizer.decode([int(i) for i in targets if int(i) not in special]).encode())
