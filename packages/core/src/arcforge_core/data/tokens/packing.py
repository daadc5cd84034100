"""Packs documents into rows of `sequence_length` tokens; every row can be computed from its number alone.

A document of L stored tokens gives L - 1 training positions: inputs 0..L-2, targets 1..L-1. A row is a list of
pieces, and each piece becomes its own segment. A cut document continues in the next row with the position
after the cut, so that every position is trained on once per epoch. Rows are numbered across epochs: row g
is row ``g % num_rows`` of epoch ``g // num_rows``.

Shapes: D documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from arcforge_core.errors import DataError

MIXING_BLOCK = 4096
"""Rows over which a mixture's weights are exact, to within one row of each source."""


SHUFFLE_BLOCK = 1 << 16
"""Rows that are shuffled together: adjacent rows come from one document, which would make batches homogeneous."""


class PackedPiece(NamedTuple):
    """Positions start .. start + length of a document."""

    document: int
    start: int
    length: int


class Packing(Protocol):
    """Rows of one list of documents.

    Attributes:
        num_rows: rows of an epoch.
        tokens_per_row: their mean length.
    """

    num_rows: int
    tokens_per_row: float

    def row(self, number: int) -> list[PackedPiece]:
        """Returns the pieces of a row, numbered across epochs."""


class Sequential:
    """Documents one after another, cut at row ends; then the rows are shuffled.

    Args:
        positions_D: int64 training positions of each document, each at least 1.
        sequence_length: positions of a row.
        seed: reshuffles documents and rows in every epoch; None keeps one fixed order and puts the remainder into a
            shorter row (evaluation), which training drops.
    """

    def __init__(self, positions_D: NDArray[np.int64], sequence_length: int, seed: int | None) -> None:
        self._positions_D = positions_D
        self._length = sequence_length
        self._seed = seed
        total = int(positions_D.sum())
        self.num_rows = total // sequence_length if seed is not None else -(-total // sequence_length)
        self.tokens_per_row = float(sequence_length)
        self._epoch = lru_cache(maxsize=2)(self._shuffled)
        self._block = lru_cache(maxsize=2)(self._shuffled_block)

    def _shuffled(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the epoch's order of documents and, in that order, the end position of each."""
        seed = (0, 0) if self._seed is None else (self._seed, epoch)
        order_D = np.random.default_rng(seed).permutation(len(self._positions_D))
        return order_D, np.cumsum(self._positions_D[order_D])

    def _shuffled_block(self, epoch: int, block: int) -> NDArray[np.int64]:
        """Returns the epoch's order of the rows of one block."""
        first = block * SHUFFLE_BLOCK
        seed = (0, 0) if self._seed is None else (self._seed, epoch)
        rng = np.random.default_rng((*seed, block, 1))
        return first + rng.permutation(min(SHUFFLE_BLOCK, self.num_rows - first))

    def row(self, number: int) -> list[PackedPiece]:
        epoch, place = divmod(number, self.num_rows)
        row = int(self._block(epoch, place // SHUFFLE_BLOCK)[place % SHUFFLE_BLOCK])
        order_D, ends_D = self._epoch(epoch)
        position, stop = row * self._length, min((row + 1) * self._length, int(ends_D[-1]))
        place = int(np.searchsorted(ends_D, position, side="right"))
        pieces = []
        while position < stop:
            document, end = int(order_D[place]), int(ends_D[place])
            start = position - (end - int(self._positions_D[document]))
            length = min(end, stop) - position
            pieces.append(PackedPiece(document, start, length))
            position += length
            place += 1
        return pieces


class _Packed:
    """Rows that are packed once: documents of a row never attend to each other, so only the order of rows is shuffled.

    Args:
        rows: the pieces of each row.
        seed: of the order, which differs in every epoch.
    """

    def __init__(self, rows: list[list[PackedPiece]], seed: int) -> None:
        self._seed, self._rows = seed, rows
        self.num_rows = len(rows)
        self.tokens_per_row = sum(piece.length for row in rows for piece in row) / max(1, len(rows))
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng((self._seed, epoch)).permutation(self.num_rows)

    def row(self, number: int) -> list[PackedPiece]:
        epoch, row = divmod(number, self.num_rows)
        return self._rows[self._epoch(epoch)[row]]


class BestFit(_Packed):
    """Cuts only documents longer than a row and packs the pieces by best fit, longest first.

    Rows are slightly shorter than `sequence_length` (no padding is added).

    Args:
        positions_D: int64 training positions of each document, each at least 1.
        sequence_length: maximum positions of a row.
        seed: of the order.
    """

    def __init__(self, positions_D: NDArray[np.int64], sequence_length: int, seed: int) -> None:
        super().__init__(best_fit_rows(cut(positions_D, sequence_length), sequence_length), seed)


class InOrder:
    """Best fit without shuffling, for evaluation: the same rows on every call.

    Args:
        positions_D: int64 training positions of each document, each at least 1.
        sequence_length: maximum positions of a row.
    """

    def __init__(self, positions_D: NDArray[np.int64], sequence_length: int) -> None:
        self._rows = best_fit_rows(cut(positions_D, sequence_length), sequence_length)
        self.num_rows = len(self._rows)
        self.tokens_per_row = int(positions_D.sum()) / max(1, self.num_rows)

    def row(self, number: int) -> list[PackedPiece]:
        return self._rows[number % self.num_rows]


class LongDocuments(_Packed):
    """Best fit that repeats long documents several times per epoch, others once (spec 3.3: they are up-sampled).

    An epoch has one part per repeat of a long document. Each part contains every long document once and its share of
    the others, which fill the rows that long documents leave room in; each part is packed separately, so that no row
    contains a document twice. A document longer than a row is cut at a row's length; a short remainder is not long.

    Args:
        positions_D: int64 training positions of each document, each at least 1.
        sequence_length: maximum positions of a row.
        seed: of the order, and of the part that contains a short document.
        share: minimum share of a row that makes a document long.
        repeats: occurrences of a long document in an epoch.
    """

    def __init__(
        self, positions_D: NDArray[np.int64], sequence_length: int, seed: int, share: float, repeats: int
    ) -> None:
        pieces = cut(positions_D, sequence_length)
        long = [piece for piece in pieces if piece.length >= share * sequence_length]
        short = [piece for piece in pieces if piece.length < share * sequence_length]
        order = np.random.default_rng((seed, 2)).permutation(len(short))
        parts = ([*long, *(short[n] for n in order[part::repeats])] for part in range(repeats))
        super().__init__([row for part in parts for row in best_fit_rows(part, sequence_length)], seed)


def cut(positions_D: NDArray[np.int64], sequence_length: int) -> list[PackedPiece]:
    """Returns the documents in order, those longer than a row as pieces of a row's length and a remainder."""
    return [
        PackedPiece(document, start, min(sequence_length, total - start))
        for document, total in enumerate(positions_D.tolist())
        for start in range(0, total, sequence_length)
    ]


def best_fit_rows(pieces: list[PackedPiece], sequence_length: int) -> list[list[PackedPiece]]:
    """Packs by best-fit decreasing: each piece goes to the fullest row that still has room for it.

    Open rows are indexed by remaining room; a bit mask of the rooms in use finds the smallest sufficient one in
    one machine operation per 64 lengths.
    """
    rows: list[list[PackedPiece]] = []
    open_rows: dict[int, list[list[PackedPiece]]] = {}
    rooms = 0
    for piece in sorted(pieces, key=lambda piece: -piece.length):
        candidates = rooms >> piece.length
        if candidates:
            room = piece.length + (candidates & -candidates).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                rooms ^= 1 << room
        else:
            room, row = sequence_length, []
            rows.append(row)
        row.append(piece)
        left = room - piece.length
        if left:
            open_rows.setdefault(left, []).append(row)
            rooms |= 1 << left
    return rows


@dataclass(frozen=True)
class Rule:
    """How documents become rows: ``data.packing`` and its options.

    Attributes:
        name: ``sequential``, ``best_fit`` or ``long_documents``.
        long_share, long_repeats: see `LongDocuments`; the others ignore them.
    """

    name: str = "sequential"
    long_share: float = 0.5
    long_repeats: int = 4


def make_packings(
    rule: Rule, positions: Sequence[NDArray[np.int64]], sequence_length: int, seed: int
) -> Sequence[Packing]:
    """Returns the training rows of several lists of documents, each packed separately.

    Raises:
        DataError: a list is shorter than one row, or none of them has a document that ``long_documents`` could repeat.
    """
    longest = max(int(positions_D.max(initial=0)) for positions_D in positions)
    if rule.name == "long_documents" and longest < rule.long_share * sequence_length:
        raise DataError(
            f"data.packing=long_documents: the longest document has {longest} tokens, but long ones begin at "
            f"data.long_share={rule.long_share:g} of trainer.sequence_length={sequence_length}; use longer documents, "
            "or data.packing=best_fit"
        )
    return [make_packing(rule, positions_D, sequence_length, seed) for positions_D in positions]


def make_packing(rule: Rule, positions_D: NDArray[np.int64], sequence_length: int, seed: int) -> Packing:
    """Returns the training rows of one list of documents.

    Raises:
        DataError: all documents together are shorter than one row.
    """
    total = int(positions_D.sum())
    if total < sequence_length:
        raise DataError(
            f"trainer.sequence_length={sequence_length}: the corpus has only {total} tokens to train on; "
            "use more text or a shorter sequence"
        )
    if rule.name == "best_fit":
        return BestFit(positions_D, sequence_length, seed)
    if rule.name == "long_documents":
        return LongDocuments(positions_D, sequence_length, seed, rule.long_share, rule.long_repeats)
    return Sequential(positions_D, sequence_length, seed)


class Mixture:
    """Rows of several packings in proportion to weights, by tokens.

    Every block of `MIXING_BLOCK` rows contains the same number of rows of each packing, in an order drawn per block,
    so that any row is found without counting from the start.
    """

    def __init__(self, packings: Sequence[Packing], weights: Sequence[float], seed: int) -> None:
        self._packings = packings
        self._seed = seed
        rates = np.array([w / p.tokens_per_row for w, p in zip(weights, packings, strict=True)])
        # at least one row each: a small weight must not disable its source
        counts = np.maximum(1, np.floor(rates / rates.sum() * MIXING_BLOCK)).astype(np.int64)
        counts[np.argmax(counts)] += MIXING_BLOCK - counts.sum()
        self._counts = counts
        self._block = lru_cache(maxsize=2)(self._drawn)

    def _drawn(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns, per row of a block, its packing and the number of that packing's earlier rows in the block."""
        order = np.repeat(np.arange(len(self._counts)), self._counts)
        order = np.random.default_rng((self._seed, block, 1)).permutation(order)
        before = np.zeros_like(order)
        for source, count in enumerate(self._counts):
            before[order == source] = np.arange(count)
        return order, before

    def row(self, number: int) -> tuple[int, list[PackedPiece]]:
        """Returns the packing of a row, and its pieces."""
        block, place = divmod(number, MIXING_BLOCK)
        order, before = self._block(block)
        source = int(order[place])
        return source, self._packings[source].row(block * int(self._counts[source]) + int(before[place]))
