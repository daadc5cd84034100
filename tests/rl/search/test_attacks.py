"""Calls made to stop the tools, and questions that tell their answers."""

import asyncio
import re
import time

import pytest

pytest.importorskip("bm25s")
from arcforge_core.contracts.chat import ToolCall
from arcforge_rl.search.query import WORD
from arcforge_rl.search.tools import Library

LONG = 10_000_000
CALLS = [
    ("search", {"query": "a" * LONG}),
    ("search", {"query": "a " * (LONG // 2)}),
    ("search", {"query": "(a+)+$" * 1_000}),
    ("search", {"query": "\0\ud800" * 1_000}),
    ("open", {"page": "x " * (LONG // 2)}),
    ("open", {"page": "x", "line": "9" * 5_000}),
    ("open", {"page": "x", "line": -1}),
    ("open", {"page": "x", "line": [1]}),
    ("open", {"page": "../../etc/passwd"}),
    ("find", {"page": "x", "text": "(a+)+$" * 100_000}),
    ("find", {"page": "x", "text": "\u0130" * LONG}),
    ("find", {"page": "x", "text": ""}),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_calls_answer_soon_and_briefly(number, pages):
    name, arguments = CALLS[number]
    title = pages[0].title
    given = {key: title if value == "x" else value for key, value in arguments.items()}
    start = time.process_time()
    answer = asyncio.run(Library(pages).use(ToolCall(name, given)))
    assert len(answer) < 5_000 and time.process_time() - start < 4.0


def test_no_question_has_words_of_a_name_on_its_chain(built):
    for one in built.questions:
        names = " ".join(part.entity for part in one.part.parts).lower()
        said = {clue.text for part in one.part.parts for clue in part.clues if clue.kind == WORD}
        assert not said & set(re.findall(r"[a-z]{3,}", names)), one.text


def test_no_question_tells_its_answer(built):
    for one in built.questions:
        assert not any(name.casefold() in one.text.casefold() for name in one.answers), one.text
