"""Questions pass filters that count their refusals; the same pages give the same questions."""

import asyncio
from pathlib import Path

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.scripted import ScriptedAgent
from arcforge_rl.search.build import build
from arcforge_rl.search.draw import Drawer
from arcforge_rl.search.graph import graph_of
from arcforge_rl.search.library import library_pages
from arcforge_rl.search.query import solutions
from arcforge_rl.search.questions import PAGES, read_folder, rows_of
from arcforge_rl.search.verify import Verifier

KEPT = Path(__file__).parents[2] / "conformance/search"


def test_the_same_pages_give_the_questions_of_the_kept_folder(pages, built):
    """If drawing or wording was changed on purpose, write the folder again with `write_folder`."""
    assert (KEPT / PAGES).read_text() == "".join(rows_of(pages))
    assert read_folder(KEPT) == (pages, built.questions)


def test_all_filters_are_counted(built):
    filters = built.report["filters"]
    assert filters["closed book"]["refused"] > 0
    assert filters["few steps"]["asked"] == filters["closed book"]["asked"] - filters["closed book"]["refused"]
    assert filters["verification"]["asked"] == filters["few steps"]["asked"] - filters["few steps"]["refused"]
    refused = sum(built.report["draws without a question"].values())
    assert filters["closed book"]["asked"] == built.report["draws"] - refused
    assert len(built.questions) == built.report["questions"] == 24


def test_every_question_has_one_answer_in_the_whole_graph(pages, built):
    graph = graph_of(pages, built.corrections)
    assert all(solutions(graph, one.part) == {one.part.entity} for one in built.questions)
    assert not any(Verifier(pages, built.corrections).check(one.part)[0] for one in built.questions)


def test_rare_entities_of_a_question_are_on_one_side_of_the_split(pages, built):
    graph = graph_of(pages, built.corrections)
    rare = Drawer(graph).rare
    for one in built.questions:
        groups = {graph.group(part.entity) for part in one.part.parts if part.entity in rare}
        assert len({is_heldout_task(f"search/{group}") for group in groups}) == 1


def knowing(questions):
    answers = {one.key: one.part.entity for one in questions}
    return lambda key, number: ScriptedAgent([Reply(answers.get(key, "?"))])


@pytest.mark.parametrize("which", ["closed", "hasty"])
def test_a_question_that_an_agent_answers_is_dropped(pages, built, which):
    known = built.questions[:8]
    again = asyncio.run(build(pages, 12, **{which: knowing(known)}))
    assert not {one.key for one in known} & {one.key for one in again.questions}
    name = {"closed": "closed book", "hasty": "few steps"}[which]
    assert again.report["filters"][name]["refused"] >= 8


@pytest.mark.nightly(reason="parses the whole standard library and filters 240 questions: a minute")
def test_the_library_gives_more_than_200_questions():
    pages = library_pages()
    made = asyncio.run(build(pages, 240))
    assert len(made.questions) >= 200
    assert 20 <= made.report["heldout"] <= 100
    assert all(count["refused"] > 0 for count in made.report["filters"].values())
    assert made.corrections
