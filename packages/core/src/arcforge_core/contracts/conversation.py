"""A conversation to train on, and the annotations that a record may carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from arcforge_core.contracts.chat import ChatOptions, Message, Tool

OFF, INTERLEAVED, PRESERVED = "off", "interleaved", "preserved"
OPTIONS = {
    OFF: ChatOptions(enable_thinking=False),
    INTERLEAVED: ChatOptions(),
    PRESERVED: ChatOptions(clear_thinking=False),
}
"""Rendering options of each thinking mode."""


class BadRecord(Exception):
    """A record that is not a valid conversation; the message gives the reason."""


class Checker(Protocol):
    """Judges answers to one question: a component of kind ``reward``, its target called as ``target(config)``.

    A record names it with its arguments, which are the fields of its config:
    ``{"checker": {"name": "exact", "arguments": {"answer": "42"}}}``.
    """

    def check(self, answer: str) -> bool:
        """Returns whether the answer is right; never raises on any text, and always gives the same verdict.

        It may wait: episodes call it outside their event loop, in one thread for all checkers.
        """


@dataclass(frozen=True)
class Check:
    """The checker of an answer.

    Attributes:
        message: index of the assistant's message whose content is the answer.
        name: a component of kind ``reward``.
        arguments: its config's fields.
    """

    message: int
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """One conversation.

    Attributes:
        messages: with `Message.trained` set from marks and failed calls.
        tools: tools that the assistant may call.
        options: rendering options.
        source: origin of the conversation, for the statistics.
        task: key that decides the side of the split; None: the record's position does.
        checks: checkers of its answers.
        cut_off: the record itself states that the last answer hit a limit.
        parts: content of messages as parts, by message index, each with whether it is trained, e.g. the pages of a
            document.
        files: initial files for tools, text by path.
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
        if not self.options.enable_thinking:
            return OFF
        return INTERLEAVED if self.options.clear_thinking else PRESERVED
