"""Calls made to stop the tools, and questions that tell their answers."""

import asyncio
import random
import re
import time
from contextlib import suppress

import pytest

pytest.importorskip("bm25s")
from arcforge_core.contracts.chat import ToolCall
from arcforge_rl.search.draw import Drawer, Rejected
from arcforge_rl.search.graph import graph_of
from arcforge_rl.search.pages import page_of
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


def test_no_question_has_words_of_a_name_on_its_chain():
    """Pages whose words are mostly names."""
    words = ["amber", "birch", "cedar", "delta", "ember", "fjords", "groves", "inlet", "kelps", "lagoon"]
    pages = [
        page_of(
            word, {"Kind": ["stone"], "Near": [words[n - 1], words[n - 3]]}, " ".join(words[n + 1 :] + words[: n - 2])
        )
        for n, word in enumerate(words)
    ]
    drawer, drawn = Drawer(graph_of(pages)), 0
    for number in range(400):
        with suppress(Rejected):
            tree = drawer._tree(drawer.seeds[number % len(drawer.seeds)], (2, 1), random.Random(number))
            names = " ".join(part.entity for part in tree.parts)
            tree, drawn = drawer._with_words(tree, random.Random(number), names), drawn + 1
            assert not {c.text for part in tree.parts for c in part.clues if c.kind == WORD} & {*names.split()}
    assert drawn > 20


def test_no_made_up_question_has_words_of_a_name(built):
    for one in built.questions:
        names = " ".join(part.entity for part in one.part.parts).lower()
        said = {clue.text for part in one.part.parts for clue in part.clues if clue.kind == WORD}
        assert not said & set(re.findall(r"[a-z]{3,}", names)), one.text


def test_no_question_tells_its_answer(built):
    for one in built.questions:
        assert not any(name.casefold() in one.text.casefold() for name in one.answers), one.text
