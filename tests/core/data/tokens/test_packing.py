import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.config.schema import DataConfig
from arcforge_core.data.tokens.packing import (
    MIXING_BLOCK,
    BestFit,
    LongDocuments,
    Mixture,
    PackedPiece,
    Packing,
    Rule,
    Sequential,
    best_fit_rows,
    cut,
    make_packing,
    make_packings,
)
from arcforge_core.errors import ConfigError, DataError

corpora = st.lists(st.integers(1, 30), min_size=1, max_size=40).map(lambda n: np.array(n, dtype=np.int64))
lengths = st.integers(1, 17)


def covered(rows: list[list[PackedPiece]]) -> Counter[tuple[int, int]]:
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
    sizes = sorted((s for n in positions_D.tolist() for s in parts(n, length)), reverse=True)
    room: list[int] = []  # the plain algorithm, one row at a time
    for size in sizes:
        fitting = [r for r in room if r >= size]
        if fitting:
            room.remove(min(fitting))
            room.append(min(fitting) - size)
        else:
            room.append(length - size)
    packed = best_fit_rows(cut(positions_D, length), length)
    assert sorted(length - sum(p.length for p in row) for row in packed) == sorted(room)


def parts(total: int, length: int) -> list[int]:
    return [length] * (total // length) + ([total % length] if total % length else [])


@given(corpora, lengths, st.floats(0.05, 1.0), st.integers(1, 5), st.integers(0, 3), st.integers(0, 2))
def test_long_documents_come_several_times_and_whole(
    positions_D: np.ndarray, length: int, share: float, repeats: int, seed: int, epoch: int
) -> None:
    packing = LongDocuments(positions_D, length, seed, share, repeats)
    rows = [packing.row(epoch * packing.num_rows + n) for n in range(packing.num_rows)]
    assert all(0 < sum(p.length for p in row) <= length for row in rows)
    assert all(len(set(row)) == len(row) for row in rows), "a row holds a document twice"
    wanted = {p: repeats if p.length >= share * length else 1 for p in cut(positions_D, length)}
    assert Counter(p for row in rows for p in row) == wanted  # `cut` cuts only what is longer than a row
    assert packing.tokens_per_row == pytest.approx(sum(p.length for row in rows for p in row) / len(rows))


@given(corpora, lengths, st.integers(1, 5), st.integers(0, 500))
def test_a_row_of_long_documents_is_found_by_its_number(
    positions_D: np.ndarray, length: int, repeats: int, number: int
) -> None:
    read, fresh = (LongDocuments(positions_D, length, 3, 0.5, repeats) for _ in range(2))
    for earlier in range(min(number, 50)):
        read.row(earlier)
    assert read.row(number) == fresh.row(number)


def test_short_documents_are_spread_over_the_rows_of_long_ones() -> None:
    """They fill what long ones leave: in every part of an epoch, not in the first alone."""
    packing = LongDocuments(np.array([12] * 5 + [4] * 20), 16, 0, 0.5, 4)
    assert packing.num_rows == 20
    assert sorted(p.length for p in packing.row(3)) == [4, 12]
    assert all(sum(p.length for p in packing.row(n)) == 16 for n in range(20))


def test_documents_of_a_row_s_length_fill_it_alone() -> None:
    packing = LongDocuments(np.array([40, 16, 3]), 16, 0, 0.5, 2)
    rows = sorted(packing.row(n) for n in range(packing.num_rows))
    whole = [[PackedPiece(0, 0, 16)], [PackedPiece(0, 16, 16)], [PackedPiece(1, 0, 16)]]
    assert [row for row in rows if row[0].length == 16] == sorted(whole * 2)
    assert PackedPiece(0, 32, 8) in [p for row in rows for p in row]


def test_more_repeats_are_a_larger_share_of_long_text() -> None:
    positions_D = np.array([1000] * 4 + [50] * 160)

    def share(repeats: int) -> float:
        packing = LongDocuments(positions_D, 1024, 0, 0.5, repeats)
        lengths = [p.length for n in range(packing.num_rows) for p in packing.row(n)]
        return sum(n for n in lengths if n == 1000) / sum(lengths)

    assert [share(n) for n in (1, 2, 4)] == pytest.approx([4 / 12, 8 / 16, 16 / 24])


def test_a_corpus_without_long_documents_is_refused_unless_another_part_has_some() -> None:
    rule = Rule("long_documents", long_share=0.5)
    with pytest.raises(DataError, match=r"longest document has 31 .* data\.long_share=0\.5 of .*sequence_length=64"):
        make_packings(rule, [np.array([31] * 9), np.array([30] * 9)], 64, 0)
    assert len(make_packings(rule, [np.array([32] * 9), np.array([30] * 9)], 64, 0)) == 2


def long_documents(positions_D: np.ndarray, length: int, seed: int) -> Packing:
    return LongDocuments(positions_D, length, seed, 0.5, 2)


@pytest.mark.parametrize("kind", [Sequential, BestFit, long_documents])
def test_epochs_and_seeds_shuffle(kind: Callable[[np.ndarray, int, int], Packing]) -> None:
    positions_D = np.arange(1, 60)
    packing = kind(positions_D, 16, 0)
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


@pytest.mark.parametrize("name", ["sequential", "best_fit", "long_documents"])
def test_a_corpus_shorter_than_a_row_names_both_lengths(name: str) -> None:
    with pytest.raises(DataError, match=r"sequence_length=64: the corpus has only 63 tokens"):
        make_packing(Rule(name), np.array([60, 3]), 64, 0)
    assert make_packing(Rule(name, long_repeats=1), np.array([60, 4]), 64, 0).num_rows == 1


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

        def row(self, number: int) -> list[PackedPiece]:
            return [PackedPiece(number, 0, 8)]

    mixture = Mixture([Counting() for _ in weights], weights, seed=0)
    last: dict[int, int] = {}
    for number in range(start, start + 200):
        source, [piece] = mixture.row(number)
        assert piece.document == last.get(source, piece.document - 1) + 1
        last[source] = piece.document
    assert {mixture.row(n)[0] for n in range(MIXING_BLOCK)} == set(range(len(weights)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing": "best_fit", "long_share": 0.7}, r"data\.long_share=0\.7: only has an effect with packing=long"),
        ({"long_repeats": 2}, r"data\.long_repeats=2: only has an effect with packing=long_documents"),
        ({"packing": "long_documents", "long_share": 0.0}, r"data\.long_share=0\.0: must be above 0"),
        ({"packing": "long_documents", "long_repeats": 0}, r"data\.long_repeats=0: must be at least 1"),
        ({"packing": "longest"}, r"data\.packing='longest': must be one of sequential, best_fit, long_documents"),
    ],
)
def test_options_of_packing_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(name="files", **changes)
    assert DataConfig(name="files", packing="long_documents", long_share=1.0, long_repeats=1).long_share == 1.0
