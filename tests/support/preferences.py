"""Planted preferences: pairs whose labels follow a known rule, with known noise and a known bias to length."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def planted(count: int, seed: int, flipped: float = 0.0, length_bias: float = 0.0) -> list[dict[str, str]]:
    """Returns pairs: of two replies the one with ``yes`` is better than the one with ``no``.

    Args:
        count: of the pairs.
        seed: of everything.
        flipped: share of the labels that are exchanged.
        length_bias: log-odds for the longer reply by word, in place of `flipped` labels.
    """
    draw, found = random.Random(seed), []
    for number in range(count):
        replies = []
        for said in ("yes", "no"):
            words = [draw.choice(WORDS) for _ in range(draw.randint(1, 12))]
            words.insert(draw.randint(0, len(words)), said)
            replies.append(" ".join(words))
        better, worse = replies
        wrong = flipped
        if length_bias:
            longer = len(better.split()) - len(worse.split())
            wrong = 1 / (1 + math.exp(2.0 + length_bias * longer))
        if draw.random() < wrong:
            better, worse = worse, better
        found.append({"prompt": f"question {number} of {seed}", "chosen": better, "rejected": worse})
    return found


def write_pairs(path: Path, pairs: list[dict[str, str]]) -> Path:
    """Writes pairs as jsonl, and returns the path."""
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path
