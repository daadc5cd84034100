"""Near copies: documents that share phrases, found in bounded memory and whatever the order of the documents.

A phrase is a run of consecutive words, compared by a 64-bit hash. Small corpora are compared phrase for phrase. When
more than `Phrases.budget` phrases have been added, only those with a small hash are kept, as in FracMinHash (Irber et
al., 2022): the kept ones depend on the set of documents alone.

Shapes: P distinct phrases of one document; R rows, one per document and phrase; D documents; G distinct phrases.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter

import numpy as np
from numpy.typing import NDArray

WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]+")
"""Words and runs of punctuation; single characters in scripts without spaces between words."""

BUDGET = 1 << 22
"""Phrases kept in memory: all of about 25 MB of text, a sample of larger corpora."""
FEWEST_SAMPLED = 4
"""Common phrases below which a sample says nothing."""
HOLDERS, CANDIDATES = 32, 8
"""`copies`: documents remembered per phrase, and documents compared phrase for phrase."""

Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]

_FACTOR = 0x9E3779B97F4A7C15


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case."""
    return WORDS.findall(text.lower())


class Phrases:
    """The distinct phrases of named documents.

    Args:
        length: words of a phrase; a shorter document is one phrase.
        budget: maximum number of phrases to keep.

    Attributes:
        kept: the kept phrases by document; documents without any are absent.
    """

    def __init__(self, length: int, budget: int = BUDGET) -> None:
        self._length, self._budget = length, budget
        self._powers = [np.uint64(pow(_FACTOR, n, 1 << 64)) for n in range(length)]
        self._limit = 1 << 64
        self._size = 0
        self.kept: dict[str, Hashes] = {}

    def add(self, name: str, words: list[str]) -> None:
        """Adds a document; names must differ."""
        phrases_P = self._below_limit(self.hashes(words))
        if len(phrases_P):
            self.kept[name] = phrases_P
            self._size += len(phrases_P)
        while self._size > self._budget:
            self._limit //= 2
            halves = ((name, self._below_limit(phrases_P)) for name, phrases_P in self.kept.items())
            self.kept = {name: half_P for name, half_P in halves if len(half_P)}
            self._size = sum(map(len, self.kept.values()))

    def groups(self, share: float) -> dict[str, str]:
        """Returns the groups of near copies: the smallest name of its group, for documents in groups of two or more.

        Documents are merged until less than `share` of each document's phrases occur in other groups. A document that
        exceeds it joins the group that has most of these phrases, where a phrase counts for one group only.
        """
        names = sorted(self.kept)
        sizes_D = np.array([len(self.kept[name]) for name in names], dtype=np.int64)
        if not len(names):
            return {}
        _, phrase_R = np.unique(np.concatenate([self.kept[name] for name in names]), return_inverse=True)
        document_R = np.repeat(np.arange(len(names)), sizes_D)
        shared_R = np.bincount(phrase_R)[phrase_R] > 1
        _, phrase_R = np.unique(phrase_R[shared_R], return_inverse=True)
        document_R = document_R[shared_R]
        least_D = np.maximum(share * sizes_D, 1 if self._limit == 1 << 64 else FEWEST_SAMPLED)
        group_D = np.arange(len(names))
        while len(merges := _merges(phrase_R, document_R, group_D, least_D)):
            group_D = _merged(merges, len(names))[group_D]
        members_D = np.bincount(group_D, minlength=len(names))
        return {name: names[group] for name, group in zip(names, group_D.tolist(), strict=True) if members_D[group] > 1}

    def copies(self, share: float) -> dict[str, tuple[str, float]]:
        """Returns the documents to drop so that no two of the others share too many phrases.

        Of near copies the one with most phrases stays.

        Args:
            share: minimum Jaccard index of two near copies.

        Returns:
            For each document to drop, the one that it resembles and their Jaccard index.
        """
        found: dict[str, tuple[str, float]] = {}
        holders: dict[int, list[str]] = {}
        for name in sorted(self.kept, key=lambda name: (-len(self.kept[name]), self.kept[name].tobytes(), name)):
            phrases_P = self.kept[name]
            met: Counter[str] = Counter()
            for phrase in phrases_P.tolist():
                met.update(holders.get(phrase, ()))
            likely = sorted(met, key=lambda other: (-met[other], other))[:CANDIDATES]
            best = max(((_jaccard(phrases_P, self.kept[other]), other) for other in likely), default=(0.0, ""))
            if best[0] >= share:
                found[name] = best[1], best[0]
                continue
            for phrase in phrases_P.tolist():
                of_phrase = holders.setdefault(phrase, [])
                if len(of_phrase) < HOLDERS:
                    of_phrase.append(name)
        return found

    def hashes(self, words: list[str]) -> Hashes:
        """Returns the distinct phrases of a document in ascending order."""
        word_W = np.array([zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words], dtype=np.uint64)
        count = max(1, len(words) - self._length + 1)
        hashes_P = np.zeros(count, dtype=np.uint64)
        for power, start in zip(self._powers, range(len(words)), strict=False):
            hashes_P += word_W[start : start + count] * power
        for shift in (29, 32):  # a product's low bits depend on low bits alone
            hashes_P = (hashes_P ^ (hashes_P >> np.uint64(shift))) * np.uint64(_FACTOR)
        return np.unique(hashes_P ^ (hashes_P >> np.uint64(31)))

    def _below_limit(self, phrases_P: Hashes) -> Hashes:
        return phrases_P if self._limit == 1 << 64 else phrases_P[phrases_P < np.uint64(self._limit)]


def _merges(phrase_R: Numbers, document_R: Numbers, group_D: Numbers, least_D: NDArray[np.float64]) -> Numbers:
    """Returns pairs of groups to merge, [n, 2].

    Every phrase of a document counts for the first other group that has it.
    """
    num_documents = len(group_D)
    group_R = group_D[document_R]
    first_G, second_G = (np.full(int(phrase_R.max(initial=-1)) + 1, num_documents) for _ in range(2))
    np.minimum.at(first_G, phrase_R, group_R)
    not_first_R = group_R != first_G[phrase_R]
    np.minimum.at(second_G, phrase_R[not_first_R], group_R[not_first_R])
    other_R = np.where(not_first_R, first_G[phrase_R], second_G[phrase_R])
    elsewhere_R = other_R < num_documents
    pairs, counts = np.unique(document_R[elsewhere_R] * num_documents + other_R[elsewhere_R], return_counts=True)
    document, other = np.divmod(pairs, num_documents)
    exceeding = (np.bincount(document, weights=counts, minlength=num_documents) >= least_D)[document]
    order = np.lexsort((other[exceeding], -counts[exceeding], document[exceeding]))
    document, other = document[exceeding][order], other[exceeding][order]
    _, most = np.unique(document, return_index=True)
    return np.stack([group_D[document[most]], other[most]], axis=1)


def _merged(merges: Numbers, num_groups: int) -> Numbers:
    """Returns the new number of each group: the smallest of the groups that are merged, directly or through others."""
    parent = list(range(num_groups))

    def root(group: int) -> int:
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    for one, two in merges.tolist():
        low, high = sorted((root(one), root(two)))
        parent[high] = low
    return np.array([root(group) for group in range(num_groups)])


def _jaccard(one_P: Hashes, two_P: Hashes) -> float:
    common = len(np.intersect1d(one_P, two_P, assume_unique=True))
    return common / (len(one_P) + len(two_P) - common)
