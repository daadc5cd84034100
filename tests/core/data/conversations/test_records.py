import json
import sys
import types
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from arcforge_core.data.conversations.records import find_files, read_rows, without_nulls
from arcforge_core.errors import DataError

GOOD = {"messages": [{"role": "user", "content": "é?"}]}


def test_jsonl_keeps_line_numbers_and_tells_why_a_line_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        json.dumps(GOOD).encode(),
        b"",
        b"{",
        b"[1]",
        b'{"a": "\\ud800"}',
        b'{"a": NaN}',
        b"\xff\xfe",
        b"[" * 99999,
    ]
    path.write_bytes(b"\n".join([*lines, json.dumps(GOOD).encode()]))
    rows = list(read_rows(path))
    assert [row.line for row in rows] == [1, 3, 4, 5, 6, 7, 8, 9]
    assert [row.record is not None for row in rows] == [True, *[False] * 6, True]
    starts = [
        "not JSON",
        "a record must be an object, not a list",
        "not UTF-8",
        "holds a value that JSON cannot represent",
        "not JSON",
        "not JSON",
    ]
    assert all(row.reason.startswith(start) for row, start in zip(rows[1:-1], starts, strict=True))
    assert {row.file for row in rows} == {str(path)}


def test_json_holds_a_list_or_one_record(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([GOOD, 3]))
    assert [(row.line, row.record) for row in read_rows(path)] == [(1, GOOD), (2, None)]
    path.write_text(json.dumps(GOOD))
    assert [(row.line, row.record) for row in read_rows(path)] == [(1, GOOD)]
    path.write_text("{} {}")
    with pytest.raises(DataError, match=r"not JSON: .*\.jsonl"):
        list(read_rows(path))


def test_parquet_columns_do_not_give_messages_fields_that_they_had_not(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": False}]},
        GOOD,
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert [(row.line, row.record) for row in read_rows(path)] == [(1, rows[0]), (2, GOOD)]
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="not a readable parquet file"):
        list(read_rows(path))


def test_folders_of_datasets_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is a fake with the only function that we use, `load_from_disk`."""

    class Rows(list):
        column_names = ("messages",)

    stand_in = types.SimpleNamespace(load_from_disk=lambda path: Rows([{**GOOD, "tools": None}]))
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")
    (folder / "data-0.arrow").write_bytes(b"x")
    assert find_files([str(tmp_path / "saved")], "data.chat") == [folder]
    assert [(row.line, row.record) for row in read_rows(folder)] == [(1, GOOD)]
    stand_in.load_from_disk = lambda path: {"train": []}
    with pytest.raises(DataError, match="several splits"):
        list(read_rows(folder))


def test_files_are_found_in_order_and_what_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.json", "c.txt", "sub/d.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_files([str(tmp_path)], "data.chat")
    assert [p.relative_to(tmp_path).as_posix() for p in found] == ["a.json", "b.jsonl", "sub/d.parquet"]
    with pytest.raises(DataError, match=r"data\.chat='.*gone': no such file or directory"):
        find_files([str(tmp_path / "gone")], "data.chat")
    with pytest.raises(DataError, match=r"data\.chat=.*c\.txt'?: must end in \.jsonl, \.json, \.parquet"):
        find_files([str(tmp_path / "c.txt")], "data.chat")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file in it ends in"):
        find_files([str(tmp_path / "empty")], "data.chat")


def test_nulls_go_at_every_depth() -> None:
    assert without_nulls({"a": None, "b": [{"c": None, "d": 0}]}) == {"b": [{"d": 0}]}
