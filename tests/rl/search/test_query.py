"""Trees are evaluated over the whole graph."""

import itertools
import random
from contextlib import suppress

import pytest

from arcforge_rl.search.draw import Drawer, Rejected
from arcforge_rl.search.graph import graph_of
from arcforge_rl.search.query import (
    COUNT,
    FIRST,
    LETTERS,
    WORD,
    Clue,
    Hop,
    QueryPart,
    as_data,
    fits,
    last_name,
    part_of,
    solutions,
)
from arcforge_rl.search.wording import question


@pytest.fixture(scope="module")
def graph(pages):
    return graph_of(pages)


def naive(graph, part):
    """The same by trying every entity for every part."""

    def satisfied(part, entity):
        near = [
            any(
                (entity in graph.others(other, hop.label, not hop.forward)) and satisfied(hop.part, other)
                for other in graph.entities
            )
            for hop in part.hops
        ]
        return graph.kind(entity) == part.kind and all(fits(graph, clue, entity) for clue in part.clues) and all(near)

    return {one for one in graph.entities if satisfied(part, one)}


def drawn(graph, count):
    drawer, found = Drawer(graph), []
    numbers = itertools.count()
    while len(found) < count:
        with suppress(Rejected):
            found.append(drawer.draw(random.Random(f"test/{next(numbers)}")))
            drawer.keep(found[-1])
    return found


def test_drawn_trees_have_one_solution_and_need_every_hop(graph):
    for part in drawn(graph, 12):
        assert solutions(graph, part) == {part.entity} == naive(graph, part)
        assert 2 <= part.size <= 4 and part.depth >= 1
        assert all(len(solutions(graph, less)) > 1 for less in part.smaller() if less.size < part.size)
        assert part_of(as_data(part)) == part


def test_questions_share_at_most_one_rare_entity(graph):
    drawer = Drawer(graph)
    used = [{one.entity for one in part.parts} & drawer.rare for part in drawn(graph, 12)]
    assert all(len(a & b) <= 1 for a, b in itertools.combinations(used, 2))
    assert len({part.entity for part in drawn(graph, 12)}) == 12


def test_questions_name_no_entity_of_theirs(graph):
    for part in drawn(graph, 12):
        text = question(part, random.Random(0))
        assert not [one.entity for one in part.parts if one.entity in text]
        assert all(clue.text in text for one in part.parts for clue in one.clues)


def test_clues(graph):
    (ship,) = [one for one in graph.entities if one == "The Heron"]
    word = sorted(graph.pages[ship].words - {"people", "speak"})[0]
    for clue, holds in [
        (Clue(WORD, word), True),
        (Clue(WORD, "absent"), False),
        (Clue(FIRST, "t"), True),
        (Clue(FIRST, "h"), False),
        (Clue(LETTERS, "", 9, 9), True),
        (Clue(LETTERS, "", 10, 12), False),
        (Clue(COUNT, "Captains", 2, 3), True),
        (Clue(COUNT, "Captains", 3, 3), False),
        (Clue(COUNT, "Absent", 1, 3), False),
    ]:
        assert fits(graph, clue, ship) == holds, clue
        assert (ship in solutions(graph, QueryPart(ship, "ship", (clue,)))) == holds


def test_direction_counts(graph):
    ship = "The Heron"
    town = graph.others(ship, "Built in", forward=True)[0]
    known = QueryPart(town, "town", (Clue(LETTERS, "", len(town), len(town)),))
    assert ship in solutions(graph, QueryPart(ship, "ship", (), (Hop("Built in", True, known),)))
    assert not solutions(graph, QueryPart(ship, "ship", (), (Hop("Built in", False, known),)))


def test_last_names():
    assert [last_name(one) for one in ("json.decoder", "json", "St. Louis")] == ["decoder", "json", "St. Louis"]
