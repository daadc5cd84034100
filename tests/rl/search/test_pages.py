"""Pages keep their facts as labelled lines, and bad files are named by line."""

import json

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.search.pages import Page, digest_of, page_of, read_pages, rows_of, with_groups


def test_facts_are_the_first_paragraph_if_all_of_it_is_labelled():
    page = Page("a", "Kind: town\nLies on: River Even; River Odd\nSeat: one, two\n\nSome lovely prose.\nNote: no fact.")
    assert page.facts == {"Kind": ("town",), "Lies on": ("River Even", "River Odd"), "Seat": ("one", "two")}
    assert page.prose == "Some lovely prose.\nNote: no fact."
    assert page.words == {"lovely", "prose"}


@pytest.mark.parametrize(
    ("text", "prose"),
    [("Kind: town", ""), ("Kind: town\nIt is old.\n\nMore", "Kind: town\nIt is old.\n\nMore"), ("", "")],
)
def test_prose(text, prose):
    assert Page("a", text).prose == prose


def test_files_are_read_as_they_are_written(tmp_path):
    pages = [page_of("a", {"Kind": ["town"], "Seat": []}, "prose", "g"), Page("b", "\n\nodd\r\ntext: \u2028")]
    path = tmp_path / "pages.jsonl"
    path.write_text("".join(rows_of(pages)))
    assert read_pages(path) == pages and digest_of(read_pages(path)) == digest_of(pages)


def test_a_row_may_name_kind_aliases_and_facts(tmp_path):
    path = tmp_path / "pages.jsonl"
    row = {"title": " a  b ", "text": "It is old.", "kind": "town", "aliases": ["c"], "facts": {"Seat": "d"}}
    path.write_text(json.dumps(row))
    (page,) = read_pages(path)
    assert (page.title, page.text) == ("a b", "Kind: town\nAlso known as: c\nSeat: d\n\nIt is old.")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("", "has no page"),
        ("{", ":1: not JSON"),
        ("[]", ":1: must be an object"),
        ('{"title": "a", "txt": ""}', "no field 'txt'"),
        ('{"title": " "}', "title must not be empty"),
        ('{"title": "a", "text": 5}', "text must be a text"),
        ('{"title": "\\ud800"}', "title must be a text"),
        ('{"title": "a", "facts": {"Seat": 5}}', "'Seat' must be"),
        ('{"title": "a", "facts": {"seat!": ["b"]}}', "'seat!' must be"),
        ('{"title": "a", "facts": {"Seat": ["b; c"]}}', "'Seat' must be"),
        ('{"title": "a"}\n{"title": "a"}', ":2: the title 'a' comes twice"),
    ],
)
def test_bad_files_are_named(tmp_path, lines, reason):
    path = tmp_path / "pages.jsonl"
    path.write_text(lines)
    with pytest.raises(DataError, match=reason):
        read_pages(path)


def test_near_copies_are_one_group(pages):
    text = " ".join(f"word{number}" for number in range(60))
    found = with_groups([Page("b", text), Page("a", f"{text} more"), Page("c", text, "own"), Page("d", "other")])
    assert [page.group for page in found] == ["a", "a", "own", ""]
    assert with_groups(pages) == pages
