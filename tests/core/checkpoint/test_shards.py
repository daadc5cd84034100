import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.checkpoint.shards import INDEX, WEIGHTS, ShardReader, ShardWriter
from arcforge_core.errors import CheckpointError


def write(folder, tensors, max_bytes):
    folder.mkdir(exist_ok=True)
    writer = ShardWriter(folder, max_bytes)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 400))
def test_what_was_written_is_read(tmp_path_factory, sizes, max_bytes):
    folder = tmp_path_factory.mktemp("shards")
    tensors = {f"t{n}": torch.randn(size).to(torch.bfloat16) for n, size in enumerate(sizes)}
    write(folder, tensors, max_bytes)
    reader = ShardReader(folder)
    assert set(reader) == set(tensors) == set(reader.shapes) and len(reader) == len(tensors)
    assert all(torch.equal(reader[name], tensor) for name, tensor in tensors.items())
    files = [path for path in folder.iterdir() if path.suffix == ".safetensors"]
    assert (folder / INDEX).is_file() == (len(files) > 1) != (folder / WEIGHTS).is_file()


def test_a_shard_is_full_before_the_next_begins(tmp_path):
    write(tmp_path, {f"t{n}": torch.zeros(10) for n in range(5)}, 80)  # two of 40 bytes each
    index = json.loads((tmp_path / INDEX).read_text())
    assert [index["weight_map"][f"t{n}"][6:11] for n in range(5)] == ["00001", "00001", "00002", "00002", "00003"]
    assert index["metadata"]["total_size"] == 200


def test_views_of_one_tensor_are_stored_apart(tmp_path):
    whole = torch.arange(12.0).view(4, 3)
    write(tmp_path, {"first": whole[:2], "second": whole[2:], "column": whole[:, 1]}, 10**9)
    reader = ShardReader(tmp_path)
    assert torch.equal(reader["second"], whole[2:]) and torch.equal(reader["column"], whole[:, 1])


def spoil_index(folder, content):
    (folder / INDEX).write_text(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "index.json is damaged"),
        ("[]", "index.json is damaged"),
        ('{"weight_map": {"t0": 3}}', "index.json is damaged"),
        ('{"weight_map": {"t9": "model-00001-of-00002.safetensors"}}', "does not contain t9"),
        ('{"weight_map": {"t0": "lost.safetensors"}}', "lost.safetensors is missing; it holds t0"),
        ('{"weight_map": {"t0": "../outside.safetensors"}}', "outside.safetensors is missing"),
    ],
)
def test_a_bad_index_is_named(tmp_path, content, message):
    folder = tmp_path / "model"
    write(tmp_path, {"t0": torch.zeros(1)}, 10**9)
    (tmp_path / WEIGHTS).rename(tmp_path / "outside.safetensors")  # a file that an index must not reach
    write(folder, {"t0": torch.zeros(3), "t1": torch.zeros(3)}, 8)
    spoil_index(folder, content)
    with pytest.raises(CheckpointError, match=message):
        ShardReader(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="proc(5)")
def test_a_file_is_mapped_while_a_tensor_or_a_view_of_it_is_alive(tmp_path):
    write(tmp_path, {"t0": torch.arange(5000.0), "t1": torch.zeros(5000)}, 10**9)
    reader = ShardReader(tmp_path)

    def mapped():
        return str(tmp_path / WEIGHTS) in Path("/proc/self/maps").read_text()

    assert not mapped()
    first, second = reader["t0"], reader["t1"]
    del second
    assert mapped()
    view = first[10:20]
    del first
    assert mapped() and torch.equal(view, torch.arange(10.0, 20.0))
    del view
    assert not mapped()
    again = reader["t0"].sum()  # not in an assertion, which keeps what it compares
    assert again == torch.arange(5000.0).sum() and not mapped()


def test_a_file_that_vanished_since_is_named(tmp_path):
    write(tmp_path, {"t0": torch.zeros(3)}, 10**9)
    reader = ShardReader(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=WEIGHTS):
        reader["t0"]
