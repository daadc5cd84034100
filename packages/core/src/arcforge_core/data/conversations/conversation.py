"""A conversation as it is trained on, and what a record may say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arcforge_core.contracts.chat import ChatOptions, Message, Tool

OFF, INTERLEAVED, PRESERVED = "off", "interleaved", "preserved"
OPTIONS = {
    OFF: ChatOptions(enable_thinking=False),
    INTERLEAVED: ChatOptions(),
    PRESERVED: ChatOptions(clear_thinking=False),
}
"""How each of the thinking modes is rendered."""


class BadRecord(Exception):
    """A record that is no conversation; the message says why."""


@dataclass(frozen=True)
class Check:
    """What says whether an answer is right.

    Attributes:
        message: index of the assistant's message whose content is the answer.
        name: a component of kind ``checker``.
        arguments: its config's fields.
    """

    message: int
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """One conversation.

    Attributes:
        messages: with `Message.trained` as marks and failed calls have it.
        tools: what may be called.
        options: how it is rendered.
        source: what it was made from, for the statistics.
        task: what decides the side of the split; None: the record's place does.
        checks: of its answers.
        cut_off: the record itself says that the last answer ran into a limit.
        parts: content of messages by index in parts, each with whether it is trained, e.g. the pages of a document.
        files: text by path, there when the conversation begins, for tools to find.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    options: ChatOptions = field(default_factory=ChatOptions)
    source: str = ""
    task: str | None = None
    checks: tuple[Check, ...] = ()
    cut_off: bool = False
    parts: Mapping[int, tuple[tuple[str, bool], ...]] = field(default_factory=dict)
    files: Mapping[str, str] | None = None

    @property
    def mode(self) -> str:
        """Returns the thinking mode."""
        if not self.options.enable_thinking:
            return OFF
        return INTERLEAVED if self.options.clear_thinking else PRESERVED
