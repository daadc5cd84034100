"""Whose turn it is, so that everyone soon has its share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class FairTurns:
    """Smooth weighted turns: after any number of them, each name had its share of them to within one.

    Attributes:
        owed: by name, turns below its share, above it if negative; the whole state.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.owed: dict[str, float] = dict.fromkeys(names, 0)

    def next(self, weights: Mapping[str, float]) -> str:
        """Returns the next name, among those with a weight; the others neither gain nor lose."""
        for name, weight in weights.items():
            self.owed[name] += weight
        turn = max(weights, key=lambda name: self.owed[name])
        self.owed[turn] -= sum(weights.values())
        return turn
