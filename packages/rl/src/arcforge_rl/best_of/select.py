"""Selects rollouts of a problem, with reasons for the rejected ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arcforge_core.episodes.rollout import Rollout
from arcforge_core.eval.conversations.figures import RIGHT, num_sampled, verdict

DISOBEYS, INVALID_CALLS = "does not follow its thinking mode", "has calls that cannot be run"
REPEATED, NOT_AMONG_BEST = "duplicates a kept rollout", "is right, but others were preferred"


@dataclass(frozen=True)
class Selection:
    """The selection among the rollouts of one problem.

    Attributes:
        kept: selected rollouts, in order of preference.
        rejected: the others, each with its reason.
    """

    kept: list[Rollout]
    rejected: list[tuple[Rollout, str]]


def select(tries: Sequence[Rollout], per_problem: int | None, choose: str) -> Selection:
    """Selects right rollouts of one problem without duplicates, at most `per_problem` by preference.

    Args:
        tries: rollouts of one task.
        per_problem: maximum number to keep; None keeps all right ones.
        choose: ``short`` or ``likely``.
    """
    kept: list[Rollout] = []
    rejected: list[tuple[Rollout, str]] = []
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


def flaw(one: Rollout) -> str | None:
    """Returns the reason to reject a rollout, or None if it is right and follows the format."""
    found = one.episode.artefacts
    if verdict(one) != RIGHT:
        return verdict(one)
    if not all(found.get("obeyed", ())):
        return DISOBEYS
    return None if found.get("valid_calls") == found.get("calls") else INVALID_CALLS


def mean_logprob(one: Rollout) -> float:
    """Returns the mean log-prob per sampled token."""
    return sum(sum(branch.logprobs.tolist()) for branch in one.branches) / max(1, num_sampled(one))


ORDERS: dict[str, Callable[[Rollout], tuple[float, int]]] = {
    "short": lambda one: (num_sampled(one), one.number),
    "likely": lambda one: (-mean_logprob(one), one.number),
}
"""Sort keys of the preference; ties are broken by rollout number."""


def _said(one: Rollout) -> str:
    messages = [
        (m.role, m.content, m.reasoning or "", [(c.name, dict(c.arguments)) for c in m.tool_calls])
        for m in one.episode.messages
    ]
    return json.dumps(messages, sort_keys=True)
