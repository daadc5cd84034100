"""Names become entities and relations where they are one entity's alone."""

import pytest

from arcforge_rl.search.graph import MENTIONS, GraphCorrection, graph_of
from arcforge_rl.search.pages import ALIASES, KIND, Page, page_of


def town(title, *aliases, prose="", group="", **facts):
    return page_of(title, {KIND: ["town"], ALIASES: aliases, **facts}, prose, group)


def test_values_that_name_pages_are_relations_by_any_name():
    graph = graph_of([town("Alder", "The Old One"), town("Birch", Twin=["The Old One"]), town("Cedar", Twin=["Alder"])])
    assert graph.out["Twin"] == {"Birch": ("Alder",), "Cedar": ("Alder",)}
    assert graph.others("Alder", "Twin", forward=False) == ("Birch", "Cedar")
    assert graph.kinds == {"town": {"Alder", "Birch", "Cedar"}}


def test_a_name_of_several_entities_is_nobodys_except_in_the_loose_graph():
    pages = [town("Alder", "One"), town("Birch", "One"), town("Cedar", Twin=["One", "Alder"])]
    assert graph_of(pages).others("Cedar", "Twin", forward=True) == ("Alder",)
    assert set(graph_of(pages, loose=True).others("Cedar", "Twin", forward=True)) == {"Alder", "Birch"}
    assert graph_of(pages).figures["names of several entities"] == 1


def test_labels_whose_values_are_mostly_no_names_state_no_relations():
    pages = [town("Alder", Sights=["Birch", "a bridge", "a well"]), town("Birch")]
    assert "Sights" not in graph_of(pages).out


@pytest.mark.parametrize(
    ("prose", "found"),
    [
        ("It is near Birch.", True),
        ("Birch trees grow here.", False),  # the first word of a line
        ("a birch", False),
        ("One walks to New York in a day.", True),
        ("Birches", False),
    ],
)
def test_names_in_the_prose_are_mentions(prose, found):
    pages = [town("Alder", prose=prose), town("Birch"), town("New York")]
    assert bool(graph_of(pages).out.get(MENTIONS)) == found


def test_pages_that_claim_each_other_are_one_entity():
    pages = [town("Alder", "Elder"), town("Elder", "Alder"), town("Cedar", Twin=["Elder"])]
    graph = graph_of(pages)
    assert graph.merged == {"Elder": "Alder"} and graph.entities == ("Alder", "Cedar")
    assert graph.others("Cedar", "Twin", forward=True) == ("Alder",)
    one_sided = graph_of([town("Alder", "Elder"), town("Elder")])
    assert not one_sided.merged and one_sided.names["Elder"] == {"Elder"}


def test_corrections_add_and_remove():
    pages = [town("Alder", Twin=["Birch"]), town("Birch"), town("Cedar", Twin=["Birch"])]
    wrong = GraphCorrection("Alder", "Twin", "Birch", False, "")
    missing = GraphCorrection("Birch", "Twin", "Cedar", True, "")
    graph = graph_of(pages, [wrong, missing])
    assert graph.out["Twin"] == {"Birch": ("Cedar",), "Cedar": ("Birch",)}


def test_answers_are_the_names_of_one_entity():
    pages = [town("queue.Queue", "Queue"), town("queue", "line"), town("other.Queue", "Queue"), town("a.Line", "aL")]
    graph = graph_of(pages)
    assert graph.answers("queue.Queue") == (("queue.Queue",), ("queue.queue",))
    assert graph.answers("queue") == (("queue", "line"), ("line",)), "in any case it is also Queue"
    assert graph.answers("a.Line") == (("a.Line", "aL"), ("a.line", "al"))
    assert graph_of([Page("plain", "text")]).kinds == {"entry": {"plain"}}
