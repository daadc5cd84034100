import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.data.packing import (
    MIXING_BLOCK,
    BestFit,
    Mixture,
    Packing,
    Piece,
    Sequential,
    best_fit_rows,
    make_packing,
)
from arcforge_core.errors import DataError

corpora = st.lists(st.integers(1, 30), min_size=1, max_size=40).map(lambda n: np.array(n, dtype=np.int64))
lengths = st.integers(1, 17)


def covered(rows: list[list[Piece]]) -> Counter[tuple[int, int]]:
    return Counter((p.document, p.start + i) for row in rows for p in row for i in range(p.length))


def every_position(positions_D: np.ndarray) -> Counter[tuple[int, int]]:
    return Counter((d, i) for d, n in enumerate(positions_D.tolist()) for i in range(n))


@given(corpora, lengths, st.integers(0, 5), st.integers(0, 3))
def test_sequential_rows_are_full_and_lose_only_the_end(
    positions_D: np.ndarray, length: int, seed: int, epoch: int
) -> None:
    packing = Sequential(positions_D, length, seed)
    assert packing.num_rows == positions_D.sum() // length
    rows = [packing.row(epoch * packing.num_rows + n) for n in range(packing.num_rows)]
    assert all(sum(p.length for p in row) == length for row in rows)
    lost = every_position(positions_D) - covered(rows)
    assert lost.total() == positions_D.sum() % length
    assert not covered(rows) - every_position(positions_D)


@given(corpora, lengths)
def test_evaluation_rows_cover_everything_in_one_order(positions_D: np.ndarray, length: int) -> None:
    packing = Sequential(positions_D, length, seed=None)
    rows = [packing.row(n) for n in range(packing.num_rows)]
    assert covered(rows) == every_position(positions_D)
    assert rows == [Sequential(positions_D, length, seed=None).row(n) for n in range(packing.num_rows)]


@given(corpora, lengths, st.integers(0, 3))
def test_best_fit_cuts_only_what_is_longer_than_a_row(positions_D: np.ndarray, length: int, epoch: int) -> None:
    packing = BestFit(positions_D, length, seed=1)
    rows = [packing.row(epoch * packing.num_rows + n) for n in range(packing.num_rows)]
    assert covered(rows) == every_position(positions_D)
    assert all(sum(p.length for p in row) <= length for row in rows)
    pieces = Counter(p.document for row in rows for p in row)
    assert all(pieces[d] == -(-n // length) for d, n in enumerate(positions_D.tolist()))


@given(corpora, lengths)
def test_best_fit_takes_the_fullest_row_with_room(positions_D: np.ndarray, length: int) -> None:
    sizes = sorted((s for n in positions_D.tolist() for s in cut(n, length)), reverse=True)
    room: list[int] = []  # the plain algorithm, one row at a time
    for size in sizes:
        fitting = [r for r in room if r >= size]
        if fitting:
            room.remove(min(fitting))
            room.append(min(fitting) - size)
        else:
            room.append(length - size)
    packed = best_fit_rows(positions_D, length)
    assert sorted(length - sum(p.length for p in row) for row in packed) == sorted(room)


def cut(total: int, length: int) -> list[int]:
    return [length] * (total // length) + ([total % length] if total % length else [])


@pytest.mark.parametrize("kind", [Sequential, BestFit])
def test_epochs_and_seeds_shuffle(kind: type[Sequential] | type[BestFit]) -> None:
    positions_D = np.arange(1, 60)
    packing: Packing = kind(positions_D, 16, 0)
    rows = [packing.row(n) for n in range(2 * packing.num_rows)]
    assert rows[: packing.num_rows] != rows[packing.num_rows :]
    assert rows[: packing.num_rows] != [kind(positions_D, 16, 1).row(n) for n in range(packing.num_rows)]
    assert rows == [kind(positions_D, 16, 0).row(n) for n in range(2 * packing.num_rows)]


def test_neighbouring_rows_come_from_different_documents() -> None:
    """Batches of one document each would make every step learn one kind of text."""
    for seed in (0, None):
        packing = Sequential(np.full(8, 400, dtype=np.int64), 4, seed)
        documents = [packing.row(number)[0].document for number in range(packing.num_rows)]
        changes = sum(a != b for a, b in itertools.pairwise(documents))
        assert changes > packing.num_rows / 2


@pytest.mark.parametrize("name", ["sequential", "best_fit"])
def test_a_corpus_shorter_than_a_row_names_both_lengths(name: str) -> None:
    with pytest.raises(DataError, match=r"sequence_length=64: the corpus has only 63 tokens"):
        make_packing(name, np.array([60, 3]), 64, 0)
    assert make_packing(name, np.array([60, 4]), 64, 0).num_rows == 1


def test_weights_act_on_tokens() -> None:
    draw = np.random.default_rng(0)
    long, short = draw.integers(20, 400, 300), draw.integers(30, 37, 2000)
    packings: list[Packing] = [BestFit(long, 64, 0), BestFit(short, 64, 0)]  # rows of the second are half empty
    mixture = Mixture(packings, [3.0, 1.0], seed=0)
    tokens = [0, 0]
    for number in range(2 * MIXING_BLOCK):
        source, row = mixture.row(number)
        tokens[source] += sum(p.length for p in row)
    assert tokens[0] / sum(tokens) == pytest.approx(0.75, abs=0.01)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4), st.integers(0, 3 * MIXING_BLOCK))
def test_a_mixture_takes_each_part_in_its_own_order(weights: list[float], start: int) -> None:
    class Counting:
        num_rows = 10**9
        tokens_per_row = 8.0

        def row(self, number: int) -> list[Piece]:
            return [Piece(number, 0, 8)]

    mixture = Mixture([Counting() for _ in weights], weights, seed=0)
    last: dict[int, int] = {}
    for number in range(start, start + 200):
        source, [piece] = mixture.row(number)
        assert piece.document == last.get(source, piece.document - 1) + 1
        last[source] = piece.document
    assert {mixture.row(n)[0] for n in range(MIXING_BLOCK)} == set(range(len(weights)))
