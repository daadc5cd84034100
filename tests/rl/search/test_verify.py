"""Verification refuses questions with another possible answer, and mends the graph."""

import pytest

from arcforge_rl.search.graph import GraphCorrection
from arcforge_rl.search.pages import ALIASES, KIND, page_of
from arcforge_rl.search.query import WORD, Clue, Hop, QueryPart
from arcforge_rl.search.verify import Verifier


def page(title, kind, prose="", aliases=(), **facts):
    named = {label.replace("_", " "): values for label, values in facts.items()}
    return page_of(title, {KIND: [kind], ALIASES: aliases, **named}, prose, "one")


TOWN = page("Alder", "town", "It has a chapel.", ["A. Town"])
ASKED = QueryPart("Adam", "person", (), (Hop("Born in", True, QueryPart("Alder", "town", (Clue(WORD, "chapel"),))),))
ADAM = page("Adam", "person", Born_in=["Alder"])
FAR = page("Gone", "town", aliases=["Alder Town"])


def test_one_answer_that_is_stated_is_accepted():
    assert Verifier([TOWN, ADAM, page("Bert", "person", Born_in=["Gone"]), FAR]).check(ASKED) == ("", [])


def test_the_graph_must_have_this_answer_alone():
    why, found = Verifier([TOWN, ADAM, page("Bert", "person", Born_in=["Alder"])]).check(ASKED)
    assert why == "the graph has not this answer alone" and not found


def test_a_name_in_the_prose_may_be_another_answer():
    pages = [TOWN, ADAM, page("Bert", "person", "He lived near Alder.")]
    assert Verifier(pages).check(ASKED) == ("another answer may fit", [])
    assert Verifier(pages).check(ASKED, ["Bert"])[0] == "an agent's other answer fits"


def test_a_sentence_in_the_words_of_the_label_mends_the_graph():
    pages = [TOWN, ADAM, page("Bert", "person", "He was born in Alder. He left.")]
    verifier = Verifier(pages)
    why, (mended,) = verifier.check(ASKED)
    assert why == "another answer may fit"
    assert mended == GraphCorrection("Bert", "Born in", "Alder", True, "says: He was born in Alder.")
    after = Verifier(pages, [mended])
    assert after.graph.others("Alder", "Born in", forward=False) == ("Adam", "Bert")
    assert after.check(ASKED)[0] == "the graph has not this answer alone"
    other = QueryPart("Adam", "person", ASKED.clues, (*ASKED.hops, *ASKED.hops))
    assert after.check(other)[0]


def test_a_shared_name_is_aligned_within_its_group():
    other = page_of("Elm", {KIND: ["town"], ALIASES: ["A. Town"]}, "", "two")
    pages = [TOWN, other, ADAM, page("Bert", "person", Born_in=["A. Town"])]
    why, (mended,) = Verifier(pages).check(ASKED)
    assert (mended.subject, mended.object) == ("Bert", "Alder") and "own group" in mended.reason and why


def test_a_relation_that_no_page_states_is_removed():
    pages = [TOWN, page("Adam", "person"), page("Bert", "person", Born_in=["Gone"]), FAR]
    wrong = Verifier(pages)
    wrong.graph.out["Born in"]["Adam"] = ("Alder",)
    wrong.graph.back["Born in"]["Alder"] = ("Adam",)
    why, (removed,) = wrong.check(ASKED)
    assert why == "a hop is stated nowhere"
    assert (removed.subject, removed.label, removed.object, removed.holds) == ("Adam", "Born in", "Alder", False)


@pytest.mark.parametrize(
    ("label", "sentence", "mended"),
    [
        ("Raises", "It raises ValueError.", True),
        ("Raises", "May raise a ValueError here", True),
        ("Raises", "ValueErrors are raised", False),
        ("Raises", "It praises ValueError", False),
        ("Raises", "It raises my.ValueError", False),
        ("Uses", "Using ValueError", True),
        ("Base classes", "The base class for ValueError", False),
    ],
)
def test_sentences(label, sentence, mended):
    asked = QueryPart(
        "Adam", "person", (), (Hop(label, True, QueryPart("ValueError", "error", (Clue(WORD, "wrong"),))),)
    )
    named = label.replace(" ", "_")
    error = page("ValueError", "error", "Something is wrong.")
    pages = [error, page("Adam", "person", **{named: ["ValueError"]}), page("Bert", "person", sentence)]
    assert bool(Verifier(pages).check(asked)[1]) == mended
