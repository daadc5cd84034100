"""Draws trees around rare entities and gives them the clues that leave one answer."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from arcforge_core.data.split import is_heldout_task
from arcforge_rl.search.graph import MENTIONS, Graph
from arcforge_rl.search.pages import ALIASES, KIND
from arcforge_rl.search.query import (
    COUNT,
    FIRST,
    LETTERS,
    WORD,
    Clue,
    Hop,
    QueryPart,
    fits,
    last_name,
    solutions,
    without,
)

RARE = 0.75
"""Entities whose degree is not above this quantile of all are seeds: their names are hard to guess."""
SHAPES = ((2,), (3,), (1, 1), (2, 1), (2, 2), (3, 1))
"""Lengths of the chains from the answer."""
MOST_WIDE = 40
"""Relations of one label that an entity on a chain may have: whatever lies past a hub is arbitrary."""
COMMON, FEW_PAGES = 0.03, 8
"""Share and number of pages from which on a word is too common for a clue; both must be reached."""
FEWEST_ALIKE = 5
"""Entities that the clues of the answer alone must leave."""


class Rejected(Exception):
    """A draw made no question; the message is the reason, which is counted."""


@dataclass
class Drawer:
    """Draws trees with bounded overlap.

    Attributes:
        graph: of the corpus.
        shared: entities, besides hubs, that two questions may have in common, at most.
        used: the entities of each tree that was kept.
    """

    graph: Graph
    shared: int = 1
    used: list[frozenset[str]] = field(default_factory=list)
    answers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        degrees = sorted(self.graph.degree[one] for one in self.graph.entities)
        limit = degrees[int(RARE * (len(degrees) - 1))] if degrees else 0
        self.rare = frozenset(one for one in self.graph.entities if 2 <= self.graph.degree[one] <= limit)
        self.seeds = sorted(self.rare)
        self.using: Counter[str] = Counter()

    def draw(self, draw: random.Random) -> QueryPart:
        """Returns a tree with one solution that needs each of its hops.

        Raises:
            Rejected: the draw made none.
        """
        if not self.seeds:
            raise Rejected("no rare entity has two relations")
        seed = draw.choice(self.seeds)
        if seed in self.answers:
            raise Rejected("already an answer")
        bare = self._tree(seed, draw.choice(SHAPES), draw)
        members = frozenset(part.entity for part in bare.parts)
        if len({is_heldout_task(f"search/{self.graph.group(one)}") for one in (members & self.rare) | {seed}}) > 1:
            raise Rejected("on both sides of the split")
        own = members & self.rare
        if any(len(own & other) > self.shared for other in self.used):
            raise Rejected("overlaps another question")
        return self._unique(bare, draw)

    def keep(self, part: QueryPart) -> None:
        """Notes the entities of a question that is kept."""
        self.used.append(frozenset(one.entity for one in part.parts) & self.rare)
        self.answers.add(part.entity)

    def _tree(self, seed: str, shape: tuple[int, ...], draw: random.Random) -> QueryPart:
        taken = {seed}
        hops = tuple(self._chain(seed, length, taken, draw) for length in shape)
        return QueryPart(seed, self.graph.kind(seed), (), hops)

    def _chain(self, entity: str, length: int, taken: set[str], draw: random.Random) -> Hop:
        ways = [
            (label, forward)
            for forward, sides in ((True, self.graph.out), (False, self.graph.back))
            for label in sorted(sides)
            if 0 < len(sides[label].get(entity, ())) <= MOST_WIDE
        ]
        draw.shuffle(ways)
        ways.sort(key=lambda way: way[0] == MENTIONS)  # last: such a relation is the weakest
        for label, forward in ways:
            others = [one for one in self.graph.others(entity, label, forward) if one not in taken]
            if others:
                other = draw.choice(others)
                taken.add(other)
                below = (self._chain(other, length - 1, taken, draw),) if length > 1 else ()
                return Hop(label, forward, QueryPart(other, self.graph.kind(other), (), below))
        raise Rejected("no way to continue")

    def _unique(self, part: QueryPart, draw: random.Random) -> QueryPart:
        """Adds clues until there is one solution, and removes those that are not needed."""

        def single(one: QueryPart) -> bool:
            return len(solutions(self.graph, one)) == 1

        part = self._with_words(part, draw, " ".join(one.entity.casefold() for one in part.parts))
        for _ in range(3):
            if single(part):
                break
            part = self._more(part, draw)
        if not single(part):
            raise Rejected("more than one answer")
        part = without(part, single)
        if any(single(one) for one in part.smaller() if one.size < part.size):
            raise Rejected("a hop is not needed")
        if len(solutions(self.graph, replace(part, hops=()))) < FEWEST_ALIKE:
            raise Rejected("the answer's own clues tell it")
        return part

    def _with_words(self, part: QueryPart, draw: random.Random, names: str) -> QueryPart:
        """Gives each leaf words of its page that are in none of the tree's names."""
        if not part.hops:
            return replace(part, clues=self._words(part.entity, draw, 2, names))
        hops = tuple(replace(hop, part=self._with_words(hop.part, draw, names)) for hop in part.hops)
        return replace(part, hops=hops)

    def _more(self, part: QueryPart, draw: random.Random) -> QueryPart:
        """Adds a clue that is not a word to the answer, or to a part between it and a leaf."""
        places = [one for one in part.parts if one.hops]
        chosen = draw.choice(places)
        clues = [clue for clue in self._plain(chosen.entity, draw) if clue not in chosen.clues]
        if not clues:
            return part
        return _replaced(part, chosen, replace(chosen, clues=(*chosen.clues, draw.choice(clues))))

    def _words(self, entity: str, draw: random.Random, count: int, names: str) -> tuple[Clue, ...]:
        total = len(self.graph.entities)
        words = [
            word
            for word in sorted(self.graph.pages[entity].words)
            if word not in names and 2 <= len(self.graph.words[word]) <= max(FEW_PAGES, COMMON * total)
        ]
        if len(words) < count:
            raise Rejected("a page without words")
        return tuple(Clue(WORD, word) for word in draw.sample(words, count))

    def _plain(self, entity: str, draw: random.Random) -> list[Clue]:
        name, facts = last_name(entity), self.graph.pages[entity].facts
        found = [Clue(FIRST, name[0].casefold())] if name[0].isalpha() else []
        low = max(1, len(name) - draw.randrange(3))
        if "(" not in name:  # which is no part of the name, in brackets
            found.append(Clue(LETTERS, "", low, low + 2))
        for label, values in facts.items():
            if label not in (KIND, ALIASES) and len(values) > 1:
                low = max(1, len(values) - draw.randrange(3))
                found.append(Clue(COUNT, label, low, low + 2))
        return [clue for clue in found if fits(self.graph, clue, entity)]


def _replaced(tree: QueryPart, old: QueryPart, new: QueryPart) -> QueryPart:
    if tree is old:
        return new
    return replace(tree, hops=tuple(replace(hop, part=_replaced(hop.part, old, new)) for hop in tree.hops))
