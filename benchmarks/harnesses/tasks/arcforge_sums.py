"""Sums of two numbers below a thousand, with three wrong results each."""

from __future__ import annotations

import random
from typing import Any

from datasets import Dataset, Split


def sums(**options: Any) -> dict[str, Dataset]:
    """Returns a hundred of them.

    Args:
        options: lm-eval hands all of its metadata over; nothing is read.
    """
    draw, rows = random.Random(7), []
    for _ in range(100):
        a, b = draw.randrange(1000), draw.randrange(1000)
        wrong = [a + b + draw.choice([-1, 1]) * distance for distance in (1, 10, 100)]
        choices = [str(number) for number in [a + b, *wrong]]
        draw.shuffle(choices)
        rows.append({"a": a, "b": b, "total": str(a + b), "choices": choices, "label": choices.index(str(a + b))})
    return {"test": Dataset.from_list(rows, split=Split.TEST)}
