"""The files that `creating` and `replacing` leave; faults at every call are in tests/core/train/test_faults.py."""

import os
from pathlib import Path

import pytest

from arcforge_core.errors import CheckpointError
from arcforge_core.files import atomic
from arcforge_core.files.atomic import creating, previous, replacing, write_new


def write(folder: Path, text: str) -> None:
    with replacing(folder, marker="marker") as partial:
        (partial / "marker").write_text(text)


def test_nothing_is_there_before_the_end(tmp_path: Path) -> None:
    with creating(tmp_path / "a" / "b") as partial:
        (partial / "file").write_text("x")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"
    assert os.listdir(tmp_path / "a") == ["b"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), creating(tmp_path / "a") as partial:
        (partial / "file").write_text("x")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_creating_wants_a_free_name_and_clears_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / ".a.partial" / "deep").mkdir(parents=True)
    with creating(tmp_path / "a") as partial:
        assert list(partial.iterdir()) == []
    with pytest.raises(FileExistsError), creating(tmp_path / "a"):
        pytest.fail("the block ran")
    assert os.listdir(tmp_path) == ["a"]


def test_every_new_folder_is_flushed_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    flush = atomic.flush
    monkeypatch.setattr(atomic, "flush", lambda path: (flushed.append(path), flush(path)))
    with creating(tmp_path / "a" / "b" / "c") as partial:
        (partial / "deep").mkdir()
        (partial / "deep" / "file").touch()
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(flushed)
    assert {partial, partial / "deep", partial / "deep" / "file"} <= set(flushed)


def test_a_former_folder_that_was_moved_away_comes_back_first(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write(folder, "old")
    os.rename(folder, previous(folder))  # as after a kill between the two renames
    with pytest.raises(ZeroDivisionError), replacing(folder, marker="marker"):
        assert (folder / "marker").read_text() == "old"
        raise ZeroDivisionError
    assert (folder / "marker").read_text() == "old"
    write(folder, "new")
    assert (folder / "marker").read_text() == "new"
    assert os.listdir(tmp_path) == ["model"]


def test_what_is_not_ours_is_replaced_only_without_a_marker(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="without marker and is not replaced"):
        write(folder, "new")
    with replacing(folder, marker=None) as partial:
        (partial / "file").touch()
    assert os.listdir(folder) == ["file"]


def test_texts_of_a_new_folder_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_new(tmp_path / "whole", {"one": "1", "in/two": "ü"})
    assert (tmp_path / "whole/in/two").read_text(encoding="utf-8") == "ü"
    with pytest.raises(OSError):
        write_new(tmp_path / "half", {"one": "1", "one/two": "2"})
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "whole", {"other": ""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == ["in", "one"]
