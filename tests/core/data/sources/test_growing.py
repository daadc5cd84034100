"""Records to which a process appends lines until it is killed."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_core.data.sources.readers import continued, json_objects
from arcforge_core.errors import ArcforgeError, DataError


@dataclass(frozen=True)
class Line:
    number: int
    text: str = ""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 80))
def test_a_record_that_is_cut_anywhere_keeps_its_whole_lines(tmp_path, cut):
    whole = b'{"number": 1, "text": "a"}\n{"number": 2, "text": "\xc3\xbc"}\n{"number": 3}\n'
    path = tmp_path / "record.jsonl"
    path.write_bytes(whole[:cut])
    found = continued(path, Line, "line")
    assert found == [Line(1, "a"), Line(2, "ü"), Line(3)][: len(found)]
    assert whole[:cut].count(b"\n") <= len(found) <= whole[:cut].count(b"\n") + 1
    assert continued(path, Line, "line") == found
    path.write_text(path.read_text() + '{"number": 4}\n')
    assert continued(path, Line, "line") == [*found, Line(4)]


def test_a_record_that_is_not_there_begins_empty(tmp_path):
    assert continued(tmp_path / "new/record.jsonl", Line, "line") == []
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["record.jsonl"]


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"other": 1}', "{}"])
def test_a_damaged_line_before_the_last_is_named(tmp_path, line):
    path = tmp_path / "record.jsonl"
    path.write_text(f'{{"number": 1}}\n{line}\n{{"number": 2}}\n')
    with pytest.raises(DataError, match=r"record\.jsonl:2: is no line: "):
        continued(path, Line, "line")
    assert path.read_text().count("\n") == 3


def test_a_record_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArcforgeError, match="cannot write"):
        continued(tmp_path / "file/record.jsonl", Line, "line")


@pytest.mark.parametrize(
    ("line", "reason"),
    [("{", "not JSON"), ("[]", "must be an object, not a list"), ('{"b": 1}', "has no field 'b'; fields are a")],
)
def test_objects_have_known_fields(tmp_path, line, reason):
    (tmp_path / "rows.jsonl").write_text(f'{{"a": 1}}\n\n{line}\n')
    rows = json_objects(tmp_path / "rows.jsonl", ("a",))
    assert next(rows) == (f"{tmp_path}/rows.jsonl:1", {"a": 1})
    with pytest.raises(DataError, match=rf"rows\.jsonl:3: {reason}"):
        next(rows)
