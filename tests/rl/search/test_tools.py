"""Tools find pages by their words, and answer any call."""

import asyncio
import builtins

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.errors import ConfigError
from arcforge_rl.search.pages import Page
from arcforge_rl.search.tools import FOUND, HITS, LINES, LONGEST_LINE, TOOLS, Library


@pytest.fixture(scope="module")
def library(pages):
    return Library([*pages, Page("long", "\n".join(f"line {n} xyzzy {'w' * 1000}" for n in range(1, 201)))])


def used(library, name, **arguments):
    return asyncio.run(library.use(ToolCall(name, arguments)))


def test_search_ranks_titles_first_and_shows_a_line(library):
    lines = used(library, "search", query="The Heron captains").splitlines()
    assert lines[0] == "The Heron" and lines[1].strip().startswith("Captains: ")
    assert len(lines) <= 2 * HITS
    assert used(library, "search", query="The Heron captains").splitlines() == lines


@pytest.mark.parametrize("query", ["", "qqqq zzzz", "\ud800", "the of", "x" * 100_000, 5, None])
def test_any_query_has_an_answer(library, query):
    assert used(library, "search", query=query)


def test_pages_are_shown_in_parts(library):
    first = used(library, "open", page="long").splitlines()
    assert len(first) == LINES + 2 and first[1].startswith("1: line 1 ") and first[-1] == "[140 more lines]"
    assert max(map(len, first)) < LONGEST_LINE + 10
    assert used(library, "open", page="long", line="181").splitlines()[-1].startswith("200: ")
    assert used(library, "open", page="  The   Heron ").splitlines()[0] == "The Heron"


@pytest.mark.parametrize("line", [0, -1, 201, "x", None, 1.5, "9" * 400, True])
def test_a_line_that_is_not_there_is_an_error(library, line):
    assert used(library, "open", page="long", line=line) == "Error: line must be between 1 and 200"


def test_a_page_that_is_not_there_is_an_error_with_the_nearest(library):
    assert used(library, "open", page="Heron") == "Error: there is no page 'Heron'; did you mean 'The Heron'?"
    assert used(library, "find", page="qqqq", text="a") == "Error: there is no page 'qqqq'"


def test_find_returns_lines_in_any_case(library):
    assert used(library, "find", page="The Heron", text="KIND").splitlines() == ["1: Kind: ship"]
    found = used(library, "find", page="long", text="xyzzy").splitlines()
    assert len(found) == FOUND + 1 and found[-1] == "[180 more lines]"
    assert used(library, "find", page="long", text="") == "No line of long contains this text."


def test_tools_have_schemas():
    needed = {tool.name: tool.parameters["required"] for tool in TOOLS}
    assert needed == {"search": ["query"], "open": ["page"], "find": ["page", "text"]}


def test_a_missing_index_is_named_before_work(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "bm25s":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'arcforge-rl\[search\]'"):
        Library([])
