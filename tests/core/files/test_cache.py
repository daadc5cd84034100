"""The cache's folder: the user's choice, the home folder, or a private one where the home cannot be written."""

import stat
import tempfile

import pytest

from arcforge_core.files import cache


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.delenv("ARCFORGE_CACHE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache._writable.cache_clear()
    yield
    cache._writable.cache_clear()


def test_the_choice_comes_before_the_variable_and_that_before_the_home(tmp_path, monkeypatch):
    assert cache.cache_folder("data") == tmp_path / "home/.cache/arcforge/data"
    monkeypatch.setenv("ARCFORGE_CACHE", "/elsewhere")
    assert str(cache.cache_folder("data")) == "/elsewhere/data"
    assert str(cache.cache_folder("data", "/mine")) == "/mine/data"


def test_a_home_that_cannot_be_written_is_told_once_and_replaced_by_a_private_folder(tmp_path, capsys):
    (tmp_path / "home").write_text("a file, so that no folder can be made in it")
    found = cache.cache_folder("data")
    assert cache.cache_folder("native").parent == found.parent == next((tmp_path / "temporary").iterdir())
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    assert capsys.readouterr().err.count("ARCFORGE_CACHE=FOLDER") == 1


def test_a_folder_that_others_may_write_is_not_used(tmp_path, capsys):
    (tmp_path / "home").write_text("")
    first = cache.cache_folder("data").parent
    first.chmod(0o777)
    cache._writable.cache_clear()
    assert cache.cache_folder("data").parent != first
    assert "cannot be written" in capsys.readouterr().err
