"""Whether the words of a text, and the letters of its words, are in an order.

A model of three tokens in a row, counted in people's texts, says how likely a text is. Its subject changes that more
than its order does, so a text is compared with itself in other orders: prose is likelier than they are by some bits a
word, and words that were drawn or shuffled are not.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from arcforge_rl.objectives.text import bits_per_character

TOKEN = re.compile(r"[a-z0-9\u00df-\u024f]+(?:['\u2019-][a-z0-9\u00df-\u024f]+)*|[.,:;!?]")
MARKS = frozenset(".,:;!?")
COMMON = 8
"""Occurrences from which a word is a token of its own; rarer ones are known by their ends."""
PERMUTATIONS = 4
BEGIN = "."
"""Stands before the first token."""
DOUBT = 2.0
"""Occurrences that the shorter context counts as much as."""
UNSEEN = 1e-4
"""Chance of a token that no text has."""


class Order:
    """Counts of one to three tokens in a row.

    Args:
        texts: people's.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        parts = [tokens(text) for text in texts]
        self.common = {word for word, count in Counter(w for part in parts for w in part).items() if count >= COMMON}
        self.grams: Counter[tuple[str, ...]] = Counter()
        for part in parts:
            named = [BEGIN, BEGIN, *map(self.name_of, part)]
            for size in (1, 2, 3):
                self.grams.update(tuple(named[at - size + 1 : at + 1]) for at in range(2, len(named)))
        self.begun: Counter[tuple[str, ...]] = Counter()
        for gram, count in self.grams.items():
            self.begun[gram[:-1]] += count

    def name_of(self, word: str) -> str:
        """Returns the token of a word: itself, or for a rare one its end, which tells its part of speech."""
        if word in self.common or word in MARKS:
            return word
        return "#" if word.isdigit() else f"-{word[-3:] if len(word) > 4 else word[-1]}"

    def bits(self, named: Sequence[str]) -> float:
        """Returns the bits of tokens, each after the two before it."""
        context, total = (BEGIN, BEGIN), 0.0
        for name in named:
            gram, chance = (*context, name), UNSEEN
            for start in (2, 1, 0):
                part = gram[start:]
                chance = (self.grams[part] + DOUBT * chance) / (self.begun[part[:-1]] + DOUBT)
            total -= math.log2(chance)
            context = (context[1], name)
        return total

    def of_words(self, text: str) -> float:
        """Returns the bits a word that other orders of a text's words take more; marks stay in their places."""
        named = [self.name_of(word) for word in tokens(text)]
        places = [at for at, name in enumerate(named) if name not in MARKS]
        if len(places) < 2:
            return 0.0
        draw, others = random.Random(len(places)), 0.0
        for _ in range(PERMUTATIONS):
            other = list(named)
            for at, source in zip(places, draw.sample(places, len(places)), strict=True):
                other[at] = named[source]
            others += self.bits(other) / PERMUTATIONS
        return (others - self.bits(named)) / len(places)


def tokens(text: str) -> list[str]:
    """Returns the words in lower case and the marks between them."""
    return TOKEN.findall(text.lower())


def of_letters(text: str) -> float:
    """Returns the bits a character that other orders of the letters inside the words take more."""
    draw = random.Random(0)

    def stirred(word: str) -> str:
        return "".join(draw.sample(word, len(word)))

    words = [part for part in tokens(text) if part not in MARKS]
    other = " ".join(map(stirred, words))
    return bits_per_character(other) - bits_per_character(" ".join(words))
