"""Whether a text of some style could be one that people mean: order of words and letters, and no repetition."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arcforge_rl.objectives.text import repetition, sentences, words
from arcforge_rl.rewards.style.human import LENGTHS, passages
from arcforge_rl.rewards.style.order import Order, of_letters

MEASURED = 50
"""Passages of a length, of each half of the texts, that are measured."""
USUAL = 0.1
"""Share of people's passages that are below the order, and beyond the repetition, that earn full marks."""
PHRASE = 2
"""Words of a phrase that may be repeated."""
WORD_BITS = dict(zip(LENGTHS, (0.6, 0.7, 0.9, 1.2, 1.3, 1.3), strict=True))
"""`Order.of_words` that earns full marks at most, by the length of the passages. Counted in Python's reference pages,
nearly all prose from elsewhere has it from 64 words on, and few shuffled words: ``benchmarks/style_sense.py``."""
LETTER_BITS = 2.2
"""`of_letters` that earns full marks at most: all prose has 3, stirred letters have 1 at most."""


@dataclass(frozen=True)
class Usual:
    """The order and variety that a passage of a length needs for full marks.

    Attributes:
        words: bits a word, see `Order.of_words`; at most 0 if people's passages are too strange to tell.
        letters: bits a character, see `of_letters`.
        fresh: share of phrases that are new.
    """

    words: float
    letters: float
    fresh: float


class Sense:
    """The share of the usual order and variety that a text has.

    Args:
        texts: people's, whose passages say how much repetition is usual.
        others: people's texts that are counted besides. With them `texts` may be of any form: less order is wanted
            where `USUAL` of their passages have less, each half of them measured by the counts of all others.
    """

    def __init__(self, texts: Sequence[str], others: Sequence[str] = ()) -> None:
        self.order = Order([*texts, *others])
        parts = {length: found[: 2 * MEASURED] for length, found in passages(texts).items()}
        fresh = {
            length: float(np.quantile([fresh_share(one, length) for one in of], USUAL)) for length, of in parts.items()
        }
        known = measured(texts, others) if others else {}
        self.usual: Mapping[int, Usual] = {
            length: Usual(
                min(WORD_BITS[length], known.get(length, (np.inf,))[0]),
                min(LETTER_BITS, known.get(length, (np.inf, np.inf))[1]),
                share,
            )
            for length, share in fresh.items()
        }

    def of(self, text: str, length: int) -> float:
        """Returns the least of the text's shares, of order and of phrases and sentences that are new; in [0, 1].

        Args:
            text: as a reader sees it.
            length: words of the passages that it is compared with.
        """
        usual = self.usual.get(length)
        said = [" ".join(words(sentence)) for sentence in sentences(text)]
        shares = [len({*said}) / len(said)] if said else [0.0]
        if usual is not None:
            found = (self.order.of_words(text), of_letters(text), fresh_share(text, length))
            wanted = (usual.words, usual.letters, usual.fresh)
            shares += [have / want for have, want in zip(found, wanted, strict=True) if want > 0.0]
        return max(0.0, min(1.0, *shares))


def measured(texts: Sequence[str], others: Sequence[str]) -> dict[int, tuple[float, float]]:
    """Returns by length the bits of words and letters that `USUAL` of passages do not reach."""
    found: dict[int, list[tuple[float, float]]] = {}
    for ours, theirs in itertools.permutations((texts[::2], texts[1::2])):
        order = Order([*theirs, *others])
        for length, parts in passages(ours).items():
            rows = [(order.of_words(part), of_letters(part)) for part in parts[:MEASURED]]
            found.setdefault(length, []).extend(rows)
    quantiles = {length: np.quantile(np.array(rows), USUAL, axis=0) for length, rows in found.items()}
    return {length: (float(of_words), float(letters)) for length, (of_words, letters) in quantiles.items()}


def fresh_share(text: str, length: int) -> float:
    """Returns the share of phrases that the `length` words around them do not repeat."""
    found = words(text)
    parts = [" ".join(found[at : at + length]) for at in range(0, len(found), length)]
    repeated = sum(repetition(part, PHRASE) * len(part.split()) for part in parts) / max(1, len(found))
    return 1.0 - repeated
