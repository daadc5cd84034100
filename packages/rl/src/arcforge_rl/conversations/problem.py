"""What conversations are made of: problems with operands, and exchanges that solve them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from arcforge_core.data.split import is_heldout_task
from arcforge_rl.sandbox.desk import Bench

Messages = list[dict[str, Any]]
TRAIN, HELDOUT = "train", "heldout"
ALL_MODES = ("off", "interleaved", "preserved")
THINKING_MODES = ("interleaved", "preserved")


@dataclass(frozen=True)
class Checked:
    """A checker's name and arguments, as records have them."""

    name: str
    arguments: Mapping[str, Any]

    def as_record(self) -> dict[str, Any]:
        """Returns the object that stands in a record."""
        return {"name": self.name, "arguments": dict(self.arguments)}


@dataclass(frozen=True)
class Problem:
    """Something to be asked and solved.

    Attributes:
        operands: what it is about, e.g. ``12,345``, the same for all ways to ask it; its hash decides the side.
        solve: returns the messages, from the user's question to the last answer, with reasoning; None when it turns out
            that it cannot be solved. What runs programs does so on the desk.
        checked: judges the last answer.
        files: laid on the desk before.
        question: what is not asked twice on one side; the operands when empty. Where operands are few, one way to ask
            about them is too few.
    """

    operands: str
    solve: Callable[[Bench], Messages | None]
    checked: Checked
    files: Mapping[str, str] = field(default_factory=dict)
    question: str = ""


class Source(Protocol):
    """Makes problems of one kind.

    Attributes:
        corpus: ``chat``, ``reasoning`` or ``agent``.
        modes: thinking modes that its conversations are made in.
        tools: definitions of what may be called.
        most: problems in one conversation at most.
    """

    corpus: str
    modes: tuple[str, ...]
    tools: tuple[dict[str, Any], ...]
    most: int

    def draw(self, draw: random.Random) -> Problem:
        """Returns a problem; runs nothing yet."""


def side(kind: str, operands: str) -> str:
    """Returns on which side of the split a problem is, decided by its operands alone."""
    return HELDOUT if is_heldout_task(f"{kind}/{operands}") else TRAIN


def asked(question: str, answer: str, reasoning: str = "") -> Callable[[Bench], Messages]:
    """Returns the solution of a problem that needs no tools."""

    def solve(desk: Bench) -> Messages:
        return [{"role": "user", "content": question}, said(answer, reasoning)]

    return solve


def said(content: str, reasoning: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Returns a message of the assistant."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message
