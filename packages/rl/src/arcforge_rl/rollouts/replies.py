"""Figures of replies that no reward enters: repetition, refusals, deviations from the format."""

from __future__ import annotations

import re
from collections.abc import Sequence

from arcforge_core.contracts.environment import Reply

GRAM = 4
"""Words of an n-gram."""
REFUSAL = re.compile(
    r"^\W*(?:i(?:'m| am) (?:sorry|unable|not able)|sorry,|i (?:can(?:no|')t|cannot|won't|will not|must decline)|"
    r"as an ai\b|i'm afraid)",
    re.IGNORECASE,
)
"""How refusals begin in English."""


def reply_figures(replies: Sequence[Reply]) -> dict[str, float]:
    """Returns the means over replies: ``repetition``, ``refusals`` and ``malformed``; of none, nothing."""
    if not replies:
        return {}
    count = len(replies)
    return {
        "repetition": sum(repetition(reply.text) for reply in replies) / count,
        "refusals": sum(bool(REFUSAL.match(reply.text.replace("\u2019", "'"))) for reply in replies) / count,
        "malformed": sum(bool(reply.parsed and reply.parsed.flaws) for reply in replies) / count,
    }


def repetition(text: str) -> float:
    """Returns the share of a text's word n-grams that occurred in it before; 0 for a text without any."""
    words = text.split()
    grams = [tuple(words[place : place + GRAM]) for place in range(len(words) - GRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
