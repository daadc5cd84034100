"""Folders of runs are tried before any work."""

import tempfile

import pytest

from arcforge_core.errors import ConfigError
from arcforge_core.files.rundir import check_writable


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path):
    check_writable("output_dir", tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_before_any_work(tmp_path, monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: full)
        with pytest.raises(ConfigError, match=r"^output_dir=.*: cannot be written: No space left on device$"):
            check_writable("output_dir", tmp_path)
