"""Which tries at a problem are kept, and why the others are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arcforge_core.eval.conversations.played import Played

RIGHT = "right"
DISOBEYS, INVALID_CALLS = "does not keep to its thinking mode", "has calls that cannot be run"
REPEATED, NOT_AMONG_BEST = "says what a kept one says", "is right, and others were chosen"


@dataclass(frozen=True)
class Selection:
    """What became of the tries at one problem.

    Attributes:
        kept: in the order in which they were chosen.
        rejected: the others, each with its reason.
    """

    kept: list[Played]
    rejected: list[tuple[Played, str]]


def select(tries: Sequence[Played], per_problem: int | None, choose: str) -> Selection:
    """Chooses among the tries at one problem: right ones, each thing said once, and of these the first few.

    Args:
        tries: at one item.
        per_problem: most that are kept; None keeps all that are right.
        choose: ``short`` or ``likely``.
    """
    kept: list[Played] = []
    rejected: list[tuple[Played, str]] = []
    said: set[str] = set()
    for one in sorted(tries, key=ORDERS[choose]):
        reason = flaw(one)
        if reason is None and _said(one) in said:
            reason = REPEATED
        if reason is None and per_problem is not None and len(kept) >= per_problem:
            reason = NOT_AMONG_BEST
        if reason is None:
            kept.append(one)
            said.add(_said(one))
        else:
            rejected.append((one, reason))
    return Selection(kept, rejected)


def flaw(one: Played) -> str | None:
    """Returns why nothing is to be learnt from a try; None where it is right, and as the format wants it."""
    if one.verdict != RIGHT:
        return one.verdict
    if not all(step.obeyed for step in one.steps):
        return DISOBEYS
    return None if all(step.valid_calls == step.calls for step in one.steps) else INVALID_CALLS


def length(one: Played) -> int:
    """Returns the tokens that were sampled."""
    return sum(len(step.token_ids) for step in one.steps)


def mean_logprob(one: Played) -> float:
    """Returns the mean log-prob of a token."""
    return sum(step.logprob for step in one.steps) / max(1, length(one))


ORDERS: dict[str, Callable[[Played], tuple[float, int]]] = {
    "short": lambda one: (length(one), one.sample),
    "likely": lambda one: (-mean_logprob(one), one.sample),
}
"""What goes first; equals by the number of the try."""


def _said(one: Played) -> str:
    messages = [
        (m.role, m.content, m.reasoning or "", [(c.name, dict(c.arguments)) for c in m.tool_calls])
        for m in one.messages
    ]
    return json.dumps(messages, sort_keys=True)
