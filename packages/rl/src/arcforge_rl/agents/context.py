"""The part of a long conversation that the policy sees: context management (GLM-5, 4.2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from arcforge_core.contracts.chat import Message

OMITTED = "Tool result is omitted to save tokens."
"""In place of a tool's result (GLM-5, 4.2.4)."""


@dataclass
class Context:
    """The context of one conversation. The environment's conversation stays whole; the verifier reads that one.

    Together the two are the paper's hierarchical management: `keep_recent` applies to the rounds since the last
    discard. The paper does not say what a fresh context begins with besides the question; here it is every message that
    is neither a call nor a tool's result.

    Attributes:
        keep_recent: rounds whose tool results stay; those of earlier ones are `OMITTED`. A round is an assistant's
            message with calls and their results. None: all stay.
        discard_all: tokens of prompt and reply beyond which all rounds so far are left out. None: never.
    """

    keep_recent: int | None = None
    discard_all: int | None = None
    _discarded: Sequence[Message] = field(default=(), init=False)
    _is_full: bool = field(default=False, init=False)

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the messages of a conversation that the policy sees."""
        if self._is_full:
            self._discarded, self._is_full = (*messages,), False
        left_out = len(self._discarded)
        if (*messages[:left_out],) != (*self._discarded,):  # another conversation
            left_out = 0
        kept = [message for place, message in enumerate(messages) if place >= left_out or not is_round(message)]
        if self.keep_recent is None:
            return kept
        rounds = [place for place, message in enumerate(kept) if message.tool_calls]
        recent = rounds[-self.keep_recent] if len(rounds) > self.keep_recent else 0
        return [
            replace(message, content=OMITTED) if message.role == "tool" and place < recent else message
            for place, message in enumerate(kept)
        ]

    def measured(self, tokens: int) -> None:
        """The last prompt and its reply had this number of tokens."""
        self._is_full = self.discard_all is not None and tokens > self.discard_all

    def overflows(self, messages: Sequence[Message]) -> bool:
        """Discards because the model has no room for a conversation; returns whether there is anything to discard."""
        if self.discard_all is None or not any(map(is_round, messages[len(self._discarded) :])):
            return False
        self._is_full = True
        return True


def is_round(message: Message) -> bool:
    """Returns whether a message is a call or a tool's result."""
    return message.role == "tool" or bool(message.tool_calls)
