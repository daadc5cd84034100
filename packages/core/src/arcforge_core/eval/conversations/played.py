"""What came of playing a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from arcforge_core.chat.openai import message_for_template
from arcforge_core.contracts.chat import Message
from arcforge_core.eval.conversations.items import Item

ANSWERED, TRUNCATED, TOO_MANY_CALLS, NOT_REACHED = "answered", "truncated", "too many calls", "not reached"
"""How a turn ended: with an answer, at the limit of tokens, at that of calls, or not at all after one of these."""


@dataclass(frozen=True)
class Step:
    """One message that the model has written.

    Attributes:
        message: as it was parsed.
        flaws: what was not as the format wants it.
        token_ids: as they were sampled.
        logprob: of all of them together.
        cut: it ran into the limit of tokens.
        calls, valid_calls: made, and those that can be run: closed, of a known tool, with arguments that fit its
            schema.
        obeyed: it thinks, and closes its thoughts, where thinking is on; it does not where thinking is off.
    """

    message: Message
    flaws: tuple[str, ...]
    token_ids: list[int]
    logprob: float
    cut: bool
    calls: int
    valid_calls: int
    obeyed: bool


@dataclass(frozen=True)
class Answer:
    """How one turn ended.

    Attributes:
        outcome: ``answered``, ``truncated``, ``too many calls`` or ``not reached``.
        text: what was answered.
        expected: the record's answer.
        right: whether the checker accepts it; None where the record names no checker.
    """

    outcome: str
    text: str
    expected: str
    right: bool | None


@dataclass
class Played:
    """A conversation that is played, or was.

    Attributes:
        item: what is played.
        sample: number of this try at it.
        messages: given ones, the model's, and results of tools.
        steps: the model's.
        answers: one for each turn of the record, when it is over.
    """

    item: Item
    sample: int = 0
    messages: list[Message] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Returns ``right``, ``wrong``, how it ended before its end, or ``unchecked``."""
        broken = next((a.outcome for a in self.answers if a.outcome not in (ANSWERED, NOT_REACHED)), None)
        if broken:
            return broken
        judged = [answer.right for answer in self.answers if answer.right is not None]
        if not judged:
            return "unchecked"
        return "right" if all(judged) else "wrong"

    def as_row(self) -> dict[str, Any]:
        """Returns what a transcript holds."""
        return {
            "source": self.item.source,
            "place": self.item.key,
            "sample": self.sample,
            "thinking": self.item.conversation.mode,
            "verdict": self.verdict,
            "answers": [vars(answer) for answer in self.answers],
            "flaws": [flaw for step in self.steps for flaw in step.flaws],
            "tokens": sum(len(step.token_ids) for step in self.steps),
            "obeyed": all(step.obeyed for step in self.steps),
            "messages": [message_for_template(message) for message in self.messages],
        }
