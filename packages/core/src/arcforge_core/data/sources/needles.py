"""Words and depths of retrieval tasks; those of training and evaluation are disjoint.

A word is two or three syllables of a consonant and a vowel. The syllables form two sets, so that no word of one set is
a word, or part of a word, of the other. A depth is the share of the filler text that precedes a needle.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
EVALUATION_SYLLABLES = tuple(
    c + v for i, c in enumerate(CONSONANTS) for j, v in enumerate(VOWELS) if (i + j) % len(VOWELS) < 2
)
TRAINING_SYLLABLES = tuple(c + v for c in CONSONANTS for v in VOWELS if c + v not in EVALUATION_SYLLABLES)

EVALUATION_WORDS = frozenset(("code", "codes"))
"""Words of every evaluation question about needles, and of no training needle."""

TRAINING_DEPTHS = tuple((n / 10 + 0.03, n / 10 + 0.07) for n in range(10))
"""Intervals centred between them."""


def in_training_depths(depth: float) -> bool:
    """Whether a training needle may be placed at this depth."""
    return any(low <= depth <= high for low, high in TRAINING_DEPTHS)


def draw_words(
    draw: random.Random, syllables: Sequence[str], count: int, size: int = 2, taken: Collection[str] = ()
) -> list[str]:
    """Returns `count` distinct words of `size` syllables, none of them in `taken`.

    At least `count` words must be available; to use more than half of ``len(syllables) ** size``, pass a larger size.
    """
    words: dict[str, None] = {}
    while len(words) < count:
        word = "".join(draw.choice(syllables) for _ in range(size))
        if word not in taken:
            words[word] = None
    return list(words)
