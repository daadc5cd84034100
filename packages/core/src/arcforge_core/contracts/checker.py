"""The checker contract: whether an answer is right, decided from what a record of training data names."""

from __future__ import annotations

from typing import Protocol


class Checker(Protocol):
    """Judges answers to one question; its target is called as ``target(config)``.

    A record names a checker and its arguments, which are the fields of its config: ``{"name": "exact", "arguments":
    {"answer": "42"}}``.
    """

    def check(self, answer: str) -> bool:
        """Returns whether the answer is right; never raises on any text, and gives the same judgement again."""
