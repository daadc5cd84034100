"""Problems with operands, and the exchanges that solve them, from which conversations are built."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from arcforge_core.data.split import is_heldout_task
from arcforge_rl.sandbox.sync import Bench

Messages = list[dict[str, Any]]
TRAIN, HELDOUT = "train", "heldout"
ALL_MODES = ("off", "interleaved", "preserved")
THINKING_MODES = ("interleaved", "preserved")


@dataclass(frozen=True)
class Checked:
    """Name and arguments of a checker, in the format of records."""

    name: str
    arguments: Mapping[str, Any]

    def as_record(self) -> dict[str, Any]:
        """Returns the checker's entry in a record."""
        return {"name": self.name, "arguments": dict(self.arguments)}


@dataclass(frozen=True)
class Problem:
    """A question with its solution.

    Attributes:
        operands: subject of the question, e.g. ``12,345``, equal for all wordings; its hash decides the side.
        solve: returns the messages from the user's question to the last answer, with reasoning, or None if the problem
            turns out to be unsolvable. Programs run on the desk.
        checked: checks the last answer.
        files: initial files on the desk.
        question: key that is used only once per side; the operands if empty. With few operands, one question about
            each would be too few.
    """

    operands: str
    solve: Callable[[Bench], Messages | None]
    checked: Checked
    files: Mapping[str, str] = field(default_factory=dict)
    question: str = ""


class ProblemSource(Protocol):
    """A generator of problems of one kind.

    Attributes:
        corpus: ``chat``, ``reasoning`` or ``agent``.
        modes: thinking modes of its conversations.
        tools: definitions of the tools.
        most: maximum problems per conversation.
    """

    corpus: str
    modes: tuple[str, ...]
    tools: tuple[dict[str, Any], ...]
    most: int

    def draw(self, draw: random.Random) -> Problem:
        """Returns a problem without running anything."""


def side(kind: str, operands: str) -> str:
    """Returns the side of the split of a problem, which depends on its operands only."""
    return HELDOUT if is_heldout_task(f"{kind}/{operands}") else TRAIN


def asked(question: str, answer: str, reasoning: str = "") -> Callable[[Bench], Messages]:
    """Returns the solution of a problem without tools."""

    def solve(desk: Bench) -> Messages:
        return [{"role": "user", "content": question}, said(answer, reasoning)]

    return solve


def said(content: str, reasoning: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Returns an assistant message."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message
