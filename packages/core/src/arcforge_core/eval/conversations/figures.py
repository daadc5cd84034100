"""Shares of right answers, valid calls and followed thinking modes, by source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from arcforge_core.config.sweep import aligned
from arcforge_core.episodes.conversation_tasks import ConversationTask
from arcforge_core.episodes.conversation_turns import ANSWERED, NOT_REACHED, TOO_MANY_CALLS, TRUNCATED
from arcforge_core.episodes.rollout import Rollout

ALL = "all"
Z95 = 1.959964
"""Half-width of the central 95% of the normal distribution, in standard deviations."""
COLUMNS = {
    "answers": "answers",
    "exact": "exact",
    "calls": "calls",
    "calls_valid": "valid",
    "thinking_on": "thinks",
    "thinking_off": "thinks not",
    "truncated": "cut off",
    "too_many_calls": "too many calls",
    "tokens": "tokens",
}
"""Table columns and their headings; ``thinks`` and ``thinks not``: messages that follow this mode."""
COUNTS = ("answers", "calls", "tokens")
RIGHT, WRONG, UNCHECKED = "right", "wrong", "unchecked"


def wilson(right: float, count: float) -> tuple[float, float]:
    """Returns the 95% interval of a share by Wilson's score (JASA 22, 1927); [0, 1] for no trials."""
    if not count:
        return 0.0, 1.0
    share, square = right / count, Z95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z95 * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def by_source(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Returns the figures of each source, and of all as `ALL`, independent of the order of the rollouts."""
    sources = sorted({rollout.domain for rollout in rollouts})
    found = {source: measure([one for one in rollouts if one.domain == source]) for source in sources}
    return {**found, ALL: measure(rollouts)}


def measure(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns figures by name, without shares of empty sets.

    ``exact`` counts answers with a checker, one per turn; a truncated or unreached turn is wrong.
    ``thinking_on`` and ``thinking_off`` are shares of the model's messages, ``calls_valid`` is a share of all calls,
    ``truncated`` and ``too_many_calls`` are shares of conversations; ``tokens`` is the mean per conversation.
    """
    artefacts = [rollout.episode.artefacts for rollout in rollouts]
    judged = [right for rollout in rollouts for right in rights(rollout) if right is not None]
    calls = sum(found["calls"] for found in artefacts)
    figures: dict[str, float] = {"conversations": len(rollouts), "answers": len(judged)}
    if judged:
        low, high = wilson(sum(judged), len(judged))
        figures |= {"exact": sum(judged) / len(judged), "exact_low": low, "exact_high": high}
    figures["calls"] = calls
    if calls:
        figures["calls_valid"] = sum(found["valid_calls"] for found in artefacts) / calls
    for name, mode in (("thinking_on", True), ("thinking_off", False)):
        pairs = [pair for pair in zip(rollouts, artefacts, strict=True) if _thinks(pair[0]) is mode]
        obeyed = [obeys for _, found in pairs for obeys in found["obeyed"]]
        if obeyed:
            figures |= {f"{name}_messages": len(obeyed), name: sum(obeyed) / len(obeyed)}
    ends = [{answer["outcome"] for answer in found["answers"]} for found in artefacts]
    for name, outcome in (("truncated", TRUNCATED), ("too_many_calls", TOO_MANY_CALLS)):
        figures[name] = sum(outcome in found for found in ends) / max(1, len(rollouts))
    figures["tokens"] = sum(map(num_sampled, rollouts)) / max(1, len(rollouts))
    return figures


def _task(rollout: Rollout) -> ConversationTask:
    assert isinstance(rollout.task, ConversationTask)
    return rollout.task


def _thinks(rollout: Rollout) -> bool:
    return _task(rollout).conversation.options.enable_thinking


def num_sampled(rollout: Rollout) -> int:
    return sum(branch.num_sampled for branch in rollout.branches)


def rights(rollout: Rollout) -> list[bool | None]:
    """Returns for each answer whether it is right, or None if the record has no checker."""
    rewards = rollout.outcome.rewards
    found = [rewards.get(f"answer_{number}") for number in range(1, len(_task(rollout).questions) + 1)]
    return [None if value is None else value == 1.0 for value in found]


def verdict(rollout: Rollout) -> str:
    """Returns ``right``, ``wrong``, ``unchecked``, or the outcome of the turn that ended the rollout early."""
    answers = rollout.episode.artefacts.get("answers", ())
    broken = next((a["outcome"] for a in answers if a["outcome"] not in (ANSWERED, NOT_REACHED)), None)
    if broken is not None:
        return str(broken)
    if isinstance(rollout.task, ConversationTask) and not rollout.task.checked:
        return UNCHECKED
    if not answers and rollout.episode.finish_reason != "stop":
        return TRUNCATED if rollout.episode.finish_reason == "length" else TOO_MANY_CALLS
    return RIGHT if rollout.outcome.reward == 1.0 else WRONG


def conversation_row(rollout: Rollout) -> dict[str, Any]:
    """Returns a rollout's row with the fields that reports show."""
    task, found = _task(rollout), rollout.episode.artefacts
    pairs = zip(found["answers"], rights(rollout), strict=True)
    return {
        **rollout.as_row(),
        "source": task.source,
        "thinking": task.conversation.mode,
        "verdict": verdict(rollout),
        "answers": [{**answer, "right": right} for answer, right in pairs],
        "flaws": found["flaws"],
        "obeyed": all(found["obeyed"]),
        "tokens": num_sampled(rollout),
    }


def headline(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns the headline figures: shares over all sources, and the share of exact answers of each source."""
    names = ("exact", "calls_valid", "thinking_on", "thinking_off", "truncated")
    shares = {name: figures[ALL][name] for name in names if name in figures[ALL]}
    exact = {f"exact_{source}": of["exact"] for source, of in figures.items() if source != ALL and "exact" in of}
    return {**shares, **exact}


def table(figures: dict[str, dict[str, float]]) -> str:
    """Returns an aligned text table with a row per source."""
    rows = [[source, *(cell(of, name) for name in COLUMNS)] for source, of in figures.items()]
    return aligned([["source", *COLUMNS.values()], *rows])


def cell(of: dict[str, Any], name: str) -> str:
    """Formats a figure; exact answers with their interval."""
    if name not in of:
        return "-"
    if name in COUNTS:
        return f"{of[name]:,.0f}"
    share = f"{of[name]:.1%}"
    return f"{share} [{of['exact_low']:.1%}, {of['exact_high']:.1%}]" if name == "exact" else share
