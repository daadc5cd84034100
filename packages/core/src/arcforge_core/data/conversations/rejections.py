"""Rejected records, each with its file, line, rule and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

INVALID, LENGTH = "invalid", "length"
"""Rules besides the filters: not a conversation, and too long or too short in tokens."""


@dataclass(frozen=True)
class Rejection:
    """A record that is not trained on.

    Attributes:
        file, line: its location; see `Row`.
        corpus: ``chat``, ``reasoning`` or ``agent``.
        rule: `INVALID`, `LENGTH`, or the filter's name.
        reason: in words.
    """

    file: str
    line: int
    corpus: str
    rule: str
    reason: str


def summary(rejections: Sequence[Rejection], read: int) -> str:
    """Returns the number of rejected records by rule, with the first of each."""
    counts = Counter(rejection.rule for rejection in rejections)
    first = {r.rule: r for r in reversed(rejections)}
    parts = (
        f"{n:,} {rule} (e.g. {first[rule].file}:{first[rule].line}: {first[rule].reason})" for rule, n in counts.items()
    )
    return f"left out {len(rejections):,} of {read:,} records: {'; '.join(parts)}"
