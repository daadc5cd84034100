"""Which pages are free. A page is an index into every layer's tensors alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class PagePool:
    """The free pages; hands out consecutive ones where it can, because those are read without a copy."""

    def __init__(self, count: int) -> None:
        self.count = self.free = count
        self.is_free_P = np.ones(count, dtype=np.bool_)

    def take(self, count: int, after: int | None = None, room: int = 0) -> list[int]:
        """Returns pages that are free no longer; the caller has seen that `free` is enough.

        Args:
            count: how many.
            after: the page that the first one should follow.
            room: pages that the sequence may need in total: a new run of pages should have that many free.
        """
        assert count <= self.free
        taken: list[int] = []
        page = None if after is None else after + 1
        while len(taken) < count:
            if page is None or page == self.count or not self.is_free_P[page]:
                page = self._start(max(room, count - len(taken)))
            self.is_free_P[page] = False
            self.free -= 1
            taken.append(page)
            page += 1
        return taken

    def give(self, pages: Sequence[int]) -> None:
        """Takes pages back."""
        assert not self.is_free_P[list(pages)].any(), "a page was given back twice"
        self.is_free_P[list(pages)] = True
        self.free += len(pages)

    def _start(self, room: int) -> int:
        """Returns where the longest free run begins, or its middle: the sequence before it may still grow."""
        edges = np.flatnonzero(np.diff(self.is_free_P.view(np.int8), prepend=0, append=0))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        longest = int(lengths.argmax())
        start, length = int(starts[longest]), int(lengths[longest])
        return start + length // 2 if start > 0 and length >= 2 * room else start
