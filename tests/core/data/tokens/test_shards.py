import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.data.tokens.shards import HEADER_BYTES, Shard, ShardWriter, TokenStore, token_dtype
from arcforge_core.errors import DataError


def write(folder: Path, documents: list[list[int]], vocab_size: int = 300, limit: int = 10**9) -> list[Path]:
    with ShardWriter(folder / "train", vocab_size, limit) as writer:
        for number, ids in enumerate(documents):
            writer.add(ids, 10 * number)
    return writer.files


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 299), min_size=2, max_size=9), min_size=1, max_size=12), st.integers(1, 40))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], limit: int
) -> None:
    files = write(tmp_path_factory.mktemp("shards"), documents, limit=limit)
    store = TokenStore(Shard.open(path, np.uint16) for path in files)
    assert store.lengths_D.tolist() == [len(d) for d in documents]
    assert store.bytes_D.tolist() == [10 * n for n in range(len(documents))]
    for number, ids in enumerate(documents):
        assert store.read(number, 0, len(ids)).tolist() == ids
        assert store.read(number, 1, len(ids) - 1).tolist() == ids[1:-1]
    sizes = [len(Shard.open(path, np.uint16).tokens_T) for path in files]
    assert all(size <= max(limit, max(map(len, documents))) for size in sizes)
    assert sum(map(len, documents)) == sum(sizes)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, np.uint16), (65537, np.uint32)])
def test_the_token_type_holds_the_largest_id(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    assert token_dtype(vocab_size) is dtype
    path = write(tmp_path, [[0, vocab_size - 1]], vocab_size)[0]
    assert Shard.open(path, dtype).tokens_T.tolist() == [0, vocab_size - 1]


def test_damage_is_seen_on_opening(tmp_path: Path) -> None:
    path = write(tmp_path, [[1, 2, 3], [4, 5]])[0]
    whole = path.read_bytes()
    assert Shard.open(path, np.uint16).bytes_D.tolist() == [0, 10]
    with pytest.raises(DataError, match="damaged header"):
        Shard.open(path, np.uint32)
    for content, message in (
        (whole[:-1], "its header requires"),
        (whole + b"x", "its header requires"),
        (whole[: HEADER_BYTES - 1], "too few for a header"),
        (whole[:20] + b"\xff" + whole[21:], "damaged header"),
        (bytes(len(whole)), "damaged header"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            Shard.open(path, np.uint16)
    path.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        Shard.open(path, np.uint16)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=6), st.data())
def test_masks_come_back_bit_by_bit(masks: list[list[bool]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with ShardWriter(Path(folder, "s"), 300, tokens_per_shard=40) as writer:
            for mask in masks:
                writer.add(range(len(mask)), 7, trained=mask)
        store = TokenStore(Shard.open(file, np.uint16) for file in writer.files)
        for document, mask in enumerate(masks):
            start = data.draw(st.integers(0, len(mask)))
            stop = data.draw(st.integers(start, len(mask)))
            assert store.read_mask(document, start, stop).tolist() == mask[start:stop]
            assert store.read(document, 0, len(mask)).tolist() == list(range(len(mask)))


def test_without_a_mask_all_behind_the_unlearnt_tokens_are_targets(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s", 300) as writer:
        writer.add(range(5), 1, unlearnt=2)
    store = TokenStore(Shard.open(file, np.uint16) for file in writer.files)
    assert store.read_mask(0, 1, 5).tolist() == [False, True, True, True]


def test_masks_are_for_all_documents_and_all_tokens_or_none(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s", 300) as writer:
        writer.add([1, 2], 1, trained=[True, False])
        with pytest.raises(ValueError, match="trained has 1 entries for 2 tokens"):
            writer.add([1, 2], 1, trained=[True])
        with pytest.raises(ValueError, match="for all documents of a shard or for none"):
            writer.add([1, 2], 1)


def test_a_mask_cut_short_is_noticed(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s", 300) as writer:
        writer.add(range(9), 1, trained=[True] * 9)
    [file] = writer.files
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="its header requires"):
        Shard.open(file, np.uint16)


def test_open_shards_hold_no_file_descriptors(tmp_path: Path) -> None:
    """A corpus has more shards than a process may have open files."""
    path = write(tmp_path, [[1, 2, 3]])[0]
    before = len(os.listdir("/proc/self/fd"))
    shards = [Shard.open(path, np.uint16) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(shard.tokens_T.tolist() == [1, 2, 3] and not shard.tokens_T.flags.writeable for shard in shards)
