"""The command builds a folder from files, shows its report, and refuses bad input in one line."""

import sys

import pytest

from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.cli import main as env
from arcforge_rl.search.command import main
from arcforge_rl.search.pages import rows_of
from arcforge_rl.search.questions import read_folder


@pytest.fixture
def corpus(pages, tmp_path):
    path = tmp_path / "pages.jsonl"
    path.write_text("".join(rows_of(pages)))
    return str(path)


def test_build_and_show(corpus, tmp_path, capsys, monkeypatch):
    to = str(tmp_path / "made")
    monkeypatch.setattr(
        sys, "argv", ["arcforge-env", "search", "build", "--corpus", corpus, "--to", to, "--count", "6"]
    )
    assert env() == 0
    said = capsys.readouterr().out
    assert "6 questions in" in said and "closed book" in said and "verification" in said
    assert len(read_folder(tmp_path / "made")[1]) == 6
    assert main(["show", to]) == 0
    assert "6 questions in" in capsys.readouterr().out
    with pytest.raises(ArcforgeError, match="has questions already"):
        main(["build", "--corpus", corpus, "--to", to])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--count", "0"], "--count must be at least 1"),
        (["--seed", "-1"], "--seed and --shared"),
        (["--model", "m"], "name --url"),
        (["--url", "ftp://x"], "must begin with http"),
        (["--corpus", "absent.jsonl"], "cannot be opened"),
    ],
)
def test_bad_arguments(words, reason, tmp_path):
    with pytest.raises(ArcforgeError, match=reason):
        main(["build", "--to", str(tmp_path / "x"), *words])


def test_pages_that_are_in_two_files(corpus, tmp_path):
    with pytest.raises(DataError, match="is in another file, too"):
        main(["build", "--corpus", corpus, corpus, "--to", str(tmp_path / "x")])


def test_a_corpus_without_relations_makes_no_question(tmp_path):
    path = tmp_path / "pages.jsonl"
    path.write_text('{"title": "a", "text": "nothing"}\n')
    with pytest.raises(DataError, match=r"no question: .* no rare entity has two relations"):
        main(["build", "--corpus", str(path), "--to", str(tmp_path / "x")])


def test_a_folder_without_report(tmp_path):
    with pytest.raises(DataError, match=r"report\.json cannot be read"):
        main(["show", str(tmp_path)])
