"""The verdict takes one name and nothing else; folders are checked."""

import json

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.errors import DataError
from arcforge_rl.search.query import QueryPart
from arcforge_rl.search.questions import PAGES, QUESTIONS, REPORT, SearchQuestion, read_folder, verdict

ASKED = SearchQuestion(
    "?", QueryPart("json.Decoder", "class"), ("json.Decoder", "Decoder"), ("json.decoder",), ("list",), "json"
)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("json.Decoder", True),
        ("Answer: json.Decoder", True),
        ("It was hard.\n\n**Answer:** `Decoder`.", True),
        ("ANSWER: `Decoder`.", True),
        ("I looked at list.\nAnswer: \u201cjson.Decoder\u201d\n", True),
        ("JSON.decoder", True),
        ("decoder", False),  # another entity has this name in another case
        ("json.Decoder or list", False),
        ("json.Decoder, list", False),
        ("not json.Decoder", False),
        ("Answer: list\nAnswer: json.Decoder", False),
        ("Answer: json.Decoder\nor list", False),
        ("json.Decoder\nlist", False),
        ("", False),
        (" \n", False),
        ("\uff4ason.Decoder", False),
        (".", False),
    ],
)
def test_verdict(text, right):
    found = verdict(ASKED, Reply(text))
    assert found.value == float(right) and found.reason


def test_a_reply_that_was_cut_off_is_no_answer():
    assert verdict(ASKED, Reply("json.Decoder", finish_reason="length")).value == 0.0


def test_a_folder_is_read_as_it_was_written(folder, pages, built):
    assert read_folder(folder) == (pages, built.questions)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (QUESTIONS, None, "arcforge-env search build"),
        (PAGES, None, "cannot be opened"),
        (REPORT, None, "report.json cannot be read"),
        (REPORT, lambda text: "{}", "report.json cannot be read"),
        (PAGES, lambda text: text.replace("chapel", "castle"), "changed since the questions"),
        (QUESTIONS, lambda text: "", "has no question"),
        (QUESTIONS, lambda text: "{\n" + text, ":1: not JSON"),
        (QUESTIONS, lambda text: "[]\n" + text, ":1: is no question"),
        (QUESTIONS, lambda text: text.replace('"hops"', '"hop"', 1), ":1: is no question"),
        (QUESTIONS, lambda text: text.replace('"answers": [', '"answers": ["x", ', 1), ":1: the answer is no page"),
    ],
)
def test_a_damaged_folder_is_named(folder, name, change, reason):
    path = folder / name
    if change is None:
        path.unlink()
    else:
        path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=reason):
        read_folder(folder)


def test_corrections_are_kept(folder):
    assert all(json.loads(line)["subject"] for line in (folder / "corrections.jsonl").read_text().splitlines())
