"""Near duplicates by MinHash: two conversations whose phrases are mostly the same.

Shapes: P phrases, H hash functions.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from arcforge_core.data.conversations.conversation import Conversation

HASHES, BANDS, PHRASE = 128, 32, 5
"""With 32 bands of 4 hashes two conversations that share 80% of their phrases meet in some band with 1 - 1e-7."""
PRIME = (1 << 31) - 1


class NearDuplicates:
    """Leaves out what shares at least a share of its phrases (Jaccard, estimated) with an earlier conversation.

    Args:
        limit: that share.
        words: how a conversation becomes words.
    """

    def __init__(self, limit: float, words: Callable[[Conversation], list[str]]) -> None:
        self._limit, self._words = limit, words
        draw = np.random.default_rng(0)
        self._a_H = draw.integers(1, PRIME, HASHES, dtype=np.uint64)
        self._b_H = draw.integers(0, PRIME, HASHES, dtype=np.uint64)
        self._kept: list[NDArray[np.uint32]] = []
        self._bands: dict[tuple[int, bytes], list[int]] = defaultdict(list)

    def __call__(self, conversation: Conversation) -> str | None:
        """Returns the reason when this one is too like one that was kept."""
        signature_H = self._signature(self._words(conversation))
        width = HASHES // BANDS
        keys = [(band, signature_H[band * width : (band + 1) * width].tobytes()) for band in range(BANDS)]
        met = sorted({number for key in keys for number in self._bands.get(key, ())})
        for number in met:
            share = float((self._kept[number] == signature_H).mean())
            if share >= self._limit:
                return f"a near duplicate of an earlier one: {share:.0%} of its phrases are the same"
        for key in keys:
            self._bands[key].append(len(self._kept))
        self._kept.append(signature_H)
        return None

    def _signature(self, words: list[str]) -> NDArray[np.uint32]:
        """Returns the least value of each hash function over all phrases."""
        phrases = {" ".join(words[n : n + PHRASE]) for n in range(max(1, len(words) - PHRASE + 1))}
        hashes_P = np.array([zlib.crc32(phrase.encode()) for phrase in phrases], dtype=np.uint64) % PRIME
        least_H = np.full(HASHES, PRIME, dtype=np.uint64)
        for start in range(0, len(hashes_P), 4096):  # bounded memory for long conversations
            part_P = hashes_P[start : start + 4096]
            values_PH = (part_P[:, None] * self._a_H + self._b_H) % PRIME  # products stay below 2**62
            least_H = np.minimum(least_H, values_PH.min(axis=0))
        return least_H.astype(np.uint32)
