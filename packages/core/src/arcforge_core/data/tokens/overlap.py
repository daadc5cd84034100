"""Measures how much held-out text was trained on: the share of its phrases that occur in the training text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from arcforge_core.data.near import Hashes, Phrases, words
from arcforge_core.data.tokens.pipeline import Corpus


def heldout_overlap(corpus: Corpus, length: int) -> float:
    """Returns the share of the distinct phrases of held-out text that occur in training text.

    Reads the tokens of both sides; memory is that of the held-out side.

    Args:
        corpus: with a held-out side.
        length: words of a phrase.

    Raises:
        DataError: nothing was held out.
    """
    corpus.check_heldout()
    heldout_P = np.unique(np.concatenate(list(_phrases(corpus, "heldout", length))))
    found_P = np.zeros(len(heldout_P), dtype=np.bool_)
    for trained_P in _phrases(corpus, "train", length):
        place_P = np.searchsorted(heldout_P, trained_P).clip(max=len(heldout_P) - 1)
        found_P[place_P[heldout_P[place_P] == trained_P]] = True
    return float(found_P.mean())


def _phrases(corpus: Corpus, split: str, length: int) -> Iterator[Hashes]:
    """Yields the phrases of each document."""
    phrases = Phrases(length)
    for text in corpus.texts(split):
        yield phrases.hashes(words(text))
