import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.data.sources.readers import Unreadable, cut_at_lines, read_rows, read_text, walk
from arcforge_core.errors import DataError


def test_line_ends_and_unicode_stay_and_a_byte_order_mark_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffé\r\nb\rc\n".encode())
    assert read_text(path) == "é\r\nb\rc\n"


@pytest.mark.parametrize(("content", "reason"), [(b"a\0b", "binary"), (b"\xff\xfe", "not UTF-8")])
def test_files_that_are_no_text(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(Unreadable, match=reason):
        read_text(tmp_path / "a")


def test_walk_is_sorted_and_skips_hidden_named_and_dangling(tmp_path: Path) -> None:
    for name in ("b/x.py", "a/y.py", ".git/z.py", "tests/t.py", ".hidden", "c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    assert [p.relative_to(tmp_path).as_posix() for p in walk(tmp_path, ["tests"])] == ["c.py", "a/y.py", "b/x.py"]


def write_jsonl(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def test_jsonl_rows(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {"body": "one\ntwo", "n": 1}, {"body": None}, {"body": ""})
    assert list(read_rows(path, "body")) == ["one\ntwo", None, ""]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{oops\n', r"a\.jsonl:2: not JSON"),
        ('{"body": "a"}\n', r"a\.jsonl:1: data\.text_field='text' does not exist; the row has body"),
        ("[1]\n", r"a\.jsonl:1: .* the row has a list"),
        ('{"text": 7}\n', r"a\.jsonl:1: data\.text_field='text' holds a int, not text"),
    ],
)
def test_damaged_jsonl_names_the_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_rows(tmp_path / "a.jsonl", "text"))


def test_parquet_rows(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", None, "tré"], "n": [1, 2, 3]}), path)
    assert list(read_rows(path, "text")) == ["one", None, "tré"]
    with pytest.raises(DataError, match=r"data\.text_field='body' does not exist; columns: text, n"):
        list(read_rows(path, "body"))
    with pytest.raises(DataError, match=r"row 1: .*holds a int"):
        list(read_rows(path, "n"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"a\.parquet: not a readable parquet file"):
        list(read_rows(path, "text"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"arcforge-core\[parquet\]"):
        list(read_rows(tmp_path / "a.parquet", "text"))


@given(st.text(alphabet="aé\n\r "), st.integers(1, 10))
def test_parts_join_to_the_text(text: str, num_bytes: int) -> None:
    parts = cut_at_lines(text, num_bytes)
    assert "".join(parts) == text
    assert all(len(part.encode()) >= num_bytes for part in parts[:-1])
    assert cut_at_lines(text, None) == [text]
