from pathlib import Path

import pytest

from arcforge_core.cli.main import run_job
from support.corpora import write_texts


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["arcforge-data", *arguments])
    return run_job("data")


def test_the_shards_are_built_and_their_counts_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = write_texts(tmp_path / "texts")
    size = sum(path.stat().st_size for path in texts.iterdir())
    arguments = ["data=files", f"data.paths=[{texts}]", f"data.cache_dir={tmp_path}", "vocab_size=300"]
    monkeypatch.setenv("COLUMNS", "120")
    assert run(monkeypatch, *arguments, "data.heldout=0", "data.licence=MIT", "verify=true") == 0
    captured = capsys.readouterr()
    [row] = [line for line in captured.out.splitlines() if "train" in line and "files" in line]
    assert f"{size:,}" in row
    assert "licences: MIT (40 documents)" in captured.out
    assert "verified 1 shards" in captured.err
    assert run(monkeypatch, *arguments, "data.heldout=0", "data.licence=MIT") == 0
    assert "using cached shards" in capsys.readouterr().err


def test_a_users_error_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "data=files", f"data.paths=[{tmp_path / 'gone'}]") == 2
    assert "no such file or directory" in capsys.readouterr().err
    assert run(monkeypatch, "data=stdlib", "vocab_size=10") == 2
    assert "vocab_size=10: must be at least 300" in capsys.readouterr().err


def test_help_lists_the_sources(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("stdlib", "files", "hub", "mixture"))
