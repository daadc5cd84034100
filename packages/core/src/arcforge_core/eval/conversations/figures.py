"""Shares of right answers, valid calls and obeyed thinking modes, by source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from arcforge_core.config.sweep import aligned
from arcforge_core.eval.conversations.played import TOO_MANY_CALLS, TRUNCATED, Played

ALL = "all"
Z95 = 1.959964
"""Half the width of the middle 95% of the normal distribution, in standard deviations."""
COLUMNS = {
    "answers": "answers",
    "exact": "exact",
    "calls": "calls",
    "calls_valid": "valid",
    "thinking_on": "thinks",
    "thinking_off": "thinks not",
    "truncated": "cut off",
    "too_many_calls": "calls on and on",
    "tokens": "tokens",
}
"""Columns of the tables that people see, and their headings; ``thinks`` and ``thinks not``: where it should."""
COUNTS = ("answers", "calls", "tokens")


def wilson(right: float, count: float) -> tuple[float, float]:
    """Returns the 95% interval of a share by Wilson's score (JASA 22, 1927); all of [0, 1] for no trials."""
    if not count:
        return 0.0, 1.0
    share, square = right / count, Z95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z95 * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def by_source(played: Sequence[Played]) -> dict[str, dict[str, float]]:
    """Returns the figures of each source, and of all as `ALL`, whatever order they ended in."""
    sources = sorted({p.item.source for p in played})
    found = {source: measure([p for p in played if p.item.source == source]) for source in sources}
    return {**found, ALL: measure(played)}


def measure(played: Sequence[Played]) -> dict[str, float]:
    """Returns figures by name; shares of nothing are absent.

    ``exact`` counts answers with a checker, one for each turn; a turn that was cut off or never reached is wrong.
    ``thinking_on`` and ``thinking_off`` are shares of the model's messages that obey, ``calls_valid`` one of all calls,
    ``truncated`` and ``too_many_calls`` ones of conversations; ``tokens`` is a conversation's mean.
    """
    judged = [a.right for p in played for a in p.answers if a.right is not None]
    steps = [(p.item.conversation.options.enable_thinking, step) for p in played for step in p.steps]
    calls = sum(step.calls for _, step in steps)
    figures: dict[str, float] = {"conversations": len(played), "answers": len(judged)}
    if judged:
        low, high = wilson(sum(judged), len(judged))
        figures |= {"exact": sum(judged) / len(judged), "exact_low": low, "exact_high": high}
    figures["calls"] = calls
    if calls:
        figures["calls_valid"] = sum(step.valid_calls for _, step in steps) / calls
    for name, mode in (("thinking_on", True), ("thinking_off", False)):
        obeyed = [step.obeyed for on, step in steps if on is mode]
        if obeyed:
            figures |= {f"{name}_messages": len(obeyed), name: sum(obeyed) / len(obeyed)}
    ends = [{answer.outcome for answer in p.answers} for p in played]
    for name, outcome in (("truncated", TRUNCATED), ("too_many_calls", TOO_MANY_CALLS)):
        figures[name] = sum(outcome in found for found in ends) / max(1, len(played))
    figures["tokens"] = sum(len(step.token_ids) for _, step in steps) / max(1, len(played))
    return figures


def headline(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns the figures that stand for all: shares over all sources, and the exact answers of each."""
    names = ("exact", "calls_valid", "thinking_on", "thinking_off", "truncated")
    shares = {name: figures[ALL][name] for name in names if name in figures[ALL]}
    exact = {f"exact_{source}": of["exact"] for source, of in figures.items() if source != ALL and "exact" in of}
    return {**shares, **exact}


def table(figures: dict[str, dict[str, float]]) -> str:
    """Returns a row for each source, in columns."""
    rows = [[source, *(cell(of, name) for name in COLUMNS)] for source, of in figures.items()]
    return aligned([["source", *COLUMNS.values()], *rows])


def cell(of: dict[str, Any], name: str) -> str:
    """Returns a figure as people read it; exact answers with their interval."""
    if name not in of:
        return "-"
    if name in COUNTS:
        return f"{of[name]:,.0f}"
    share = f"{of[name]:.1%}"
    return f"{share} [{of['exact_low']:.1%}, {of['exact_high']:.1%}]" if name == "exact" else share
