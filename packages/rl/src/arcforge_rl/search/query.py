"""The tree that a question describes: parts, each with a kind, clues and hops to further parts.

The root's entity is the answer. `solutions` finds every entity of the graph that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from arcforge_rl.search.graph import Graph

WORD, LETTERS, FIRST, COUNT = "word", "letters", "first", "count"
"""Kinds of clues: a word of the page; letters of the name's last part; its first letter; values under a label."""


@dataclass(frozen=True)
class Clue:
    """A property of one entity that does not name it.

    Attributes:
        kind: one of the above.
        text: the word, the letter, or the label whose values are counted.
        low, high: bounds of the number, both included.
    """

    kind: str
    text: str = ""
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Hop:
    """A relation to another part.

    Attributes:
        label: of the relation.
        forward: whether the part's page states it; otherwise the other's.
        part: the other.
    """

    label: str
    forward: bool
    part: QueryPart


@dataclass(frozen=True)
class QueryPart:
    """An entity that a question describes without its name.

    Attributes:
        entity: which one it is.
        kind: its kind.
        clues, hops: its description.
    """

    entity: str
    kind: str
    clues: tuple[Clue, ...] = ()
    hops: tuple[Hop, ...] = ()

    @property
    def parts(self) -> Iterator[QueryPart]:
        """This part and all below it."""
        yield self
        for hop in self.hops:
            yield from hop.part.parts

    @property
    def depth(self) -> int:
        """The longest chain of hops."""
        return max((1 + hop.part.depth for hop in self.hops), default=0)

    @property
    def size(self) -> int:
        """The number of hops."""
        return sum(1 + hop.part.size for hop in self.hops)

    def smaller(self) -> Iterator[QueryPart]:
        """Yields the trees with one clue, or one hop with all below it, less; a leaf keeps its last clue."""
        for clue in self.clues if self.hops or len(self.clues) > 1 else ():
            yield replace(self, clues=tuple(one for one in self.clues if one != clue))
        for number, hop in enumerate(self.hops):
            others = (*self.hops[:number], *self.hops[number + 1 :])
            yield replace(self, hops=others)
            for part in hop.part.smaller():
                changed = (*self.hops[:number], replace(hop, part=part), *self.hops[number + 1 :])
                yield replace(self, hops=changed)


def last_name(title: str) -> str:
    """Returns what follows the last dot of a name without blanks; other names whole."""
    return title if " " in title else title.rpartition(".")[2]


def fits(graph: Graph, clue: Clue, entity: str) -> bool:
    """Returns whether a clue is true of an entity."""
    name = last_name(entity)
    if clue.kind == WORD:
        return clue.text in graph.pages[entity].words
    if clue.kind == FIRST:
        return name[:1].casefold() == clue.text
    number = len(name) if clue.kind == LETTERS else len(graph.pages[entity].facts.get(clue.text, ()))
    return clue.low <= number <= clue.high


def solutions(graph: Graph, part: QueryPart) -> frozenset[str]:
    """Returns the entities of the whole graph of which everything is true that a part says."""
    found = graph.kinds.get(part.kind, frozenset())
    for clue in part.clues:
        found = found & graph.words.get(clue.text, frozenset()) if clue.kind == WORD else found
    for hop in part.hops:
        near = {one for other in solutions(graph, hop.part) for one in graph.others(other, hop.label, not hop.forward)}
        found = found & near
    rest = [clue for clue in part.clues if clue.kind != WORD]
    return frozenset(one for one in found if all(fits(graph, clue, one) for clue in rest))


def as_data(part: QueryPart) -> dict[str, Any]:
    """Returns a part as plain data."""
    clues = [{"kind": c.kind, "text": c.text, "low": c.low, "high": c.high} for c in part.clues]
    hops = [{"label": hop.label, "forward": hop.forward, "part": as_data(hop.part)} for hop in part.hops]
    return {"entity": part.entity, "kind": part.kind, "clues": clues, "hops": hops}


def part_of(data: Mapping[str, Any]) -> QueryPart:
    """Reads `as_data`'s form.

    Raises:
        KeyError, TypeError: it has another form.
    """
    hops = tuple(Hop(hop["label"], hop["forward"], part_of(hop["part"])) for hop in data["hops"])
    return QueryPart(data["entity"], data["kind"], tuple(Clue(**clue) for clue in data["clues"]), hops)


def without(part: QueryPart, unique: Callable[[QueryPart], bool]) -> QueryPart:
    """Returns a part without the clues that it does not need to have one solution, hops kept."""
    while True:
        lesser = next((one for one in part.smaller() if one.size == part.size and unique(one)), None)
        if lesser is None:
            return part
        part = lesser
