"""Rounds of two sides that alternate, and what they say about a loss."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

CLEAR = 0.75
"""Share of rounds that must agree with the median before a verdict is clear."""


@dataclass
class Rounds:
    """By which factor the second side is worse, round by round: 1.03 is a loss of 3%.

    Attributes:
        limit: factor from which it is a loss.
        factors: of the rounds so far.
    """

    limit: float
    factors: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median factor."""
        return statistics.median(self.factors)

    @property
    def lost(self) -> bool:
        """Whether the median is a loss."""
        return self.value >= self.limit

    @property
    def clear(self) -> bool:
        """Whether most rounds say the same as the median."""
        agreeing = sum((factor >= self.limit) == self.lost for factor in self.factors)
        return agreeing >= CLEAR * len(self.factors)

    def __str__(self) -> str:
        spread = f"{min(self.factors):.3f} to {max(self.factors):.3f}, {len(self.factors)} rounds"
        verdict = "LOST" if self.lost else "kept"
        return f"{self.value:8.3f} ({spread})  {verdict}{'' if self.clear else ', unclear: rounds disagree'}"


def alternate(first: Callable[[], float], second: Callable[[], float], least: int, most: int, limit: float) -> Rounds:
    """Returns rounds of two sides whose calls return seconds; the side that begins alternates too.

    Args:
        first, second: the sides.
        least: rounds.
        most: rounds while the verdict is not clear.
        limit: see `Rounds`.
    """
    found = Rounds(limit)
    while len(found.factors) < least or (not found.clear and len(found.factors) < most):
        if len(found.factors) % 2:
            after, before = second(), first()
        else:
            before, after = first(), second()
        found.factors.append(after / before)
    return found
