"""Verification in both directions, and what it finds wrong with the graph.

From the question to its answers: a second, loose graph has every relation that a reader might take the pages to state;
the answer must be its only solution, too. From the answer to the question: each hop must be stated on a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from arcforge_rl.search.graph import MENTIONS, GraphCorrection, graph_of
from arcforge_rl.search.pages import Page
from arcforge_rl.search.query import Hop, QueryPart, solutions

MOST = 20
"""Further answers that are looked at for one question."""
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


class Verifier:
    """Verifies questions against the pages.

    Args:
        pages: of the corpus.
        corrections: of its graph.
    """

    def __init__(self, pages: Sequence[Page], corrections: Sequence[GraphCorrection] = ()) -> None:
        self.graph, self.loose = graph_of(pages, corrections), graph_of(pages, corrections, loose=True)
        self._holds = frozenset((one.subject, one.label, one.object) for one in corrections if one.holds)

    def check(self, part: QueryPart, proposed: Iterable[str] = ()) -> tuple[str, list[GraphCorrection]]:
        """Returns why a question is refused, empty if it is not, and corrections of the graph.

        Args:
            part: the tree of the question.
            proposed: further titles that agents have answered.
        """
        if solutions(self.graph, part) != {part.entity}:
            return "the graph has not this answer alone", []
        unstated = [one for one in _relations(part) if not self._stated(*one)]
        if unstated:
            return "a hop is stated nowhere", [GraphCorrection(*one, False, "stated nowhere") for one in unstated]
        others = sorted(solutions(self.loose, part) - {part.entity})
        if not others:
            return "", []
        found = [one for other in others[:MOST] for one in self._missing(part, other)]
        said = set(proposed) & set(others)
        return "an agent's other answer fits" if said else "another answer may fit", found

    def _stated(self, subject: str, label: str, object_: str) -> bool:
        """Returns whether the page of a subject has a name of the object, in its place."""
        page = self.graph.pages[subject]
        if (subject, label, object_) in self._holds:
            label = MENTIONS
        if label == MENTIONS:
            return any(_contains(page.text, name) for name, owners in self.graph.names.items() if object_ in owners)
        return any(object_ in self.graph.names.get(value, ()) for value in page.facts.get(label, ()))

    def _missing(self, part: QueryPart, entity: str) -> Iterator[GraphCorrection]:
        """Yields the relations that the pages state of another answer, or of what leads to it, and the graph lacks."""
        for hop in part.hops:
            inner = solutions(self.loose, hop.part)
            known = self.graph.others(entity, hop.label, hop.forward)
            for other in sorted(inner & set(self.loose.others(entity, hop.label, hop.forward)) - {entity}):
                if other not in known:
                    yield from self._mended(*((entity, other) if hop.forward else (other, entity)), hop.label)
                if other != hop.part.entity:
                    yield from self._missing(hop.part, other)

    def _mended(self, subject: str, object_: str, label: str) -> Iterator[GraphCorrection]:
        page, names = self.graph.pages[subject], self.graph.names
        for value in page.facts.get(label, ()):
            owners = names.get(value, frozenset())
            near = [one for one in owners if self.graph.group(one) == self.graph.group(subject)]
            if len(owners) > 1 and near == [object_]:
                yield GraphCorrection(subject, label, object_, True, f"{value} is the one of its own group")
                return
        mine = [name for name, owners in names.items() if owners == {object_}] if label != MENTIONS else []
        for sentence in SENTENCE.split(page.prose) if mine else ():
            if any(_says(sentence, label, name) for name in mine):
                yield GraphCorrection(subject, label, object_, True, f"says: {' '.join(sentence.split())[:160]}")
                return


def _says(sentence: str, label: str, name: str) -> bool:
    """Returns whether a sentence has the label as a phrase, or as a verb, followed by the name."""
    if name not in sentence:
        return False
    phrase = re.escape(label.lower())
    if " " not in label and label.endswith("s"):
        phrase = f"{re.escape(label[:-2].lower())}(?:e|es|s|ing|ed)?" if label.endswith("es") else f"{phrase}?"
    article = r"(?:an?\s+|the\s+)?[`:\w]*?"
    return re.search(rf"(?<![\w-])(?i:{phrase})\s+{article}(?<![\w.]){re.escape(name)}(?!\w)", sentence) is not None


def _relations(part: QueryPart) -> Iterator[tuple[str, str, str]]:
    """Yields the relations of a tree: subject, label, object."""
    for hop in part.hops:
        yield _relation(part, hop)
        yield from _relations(hop.part)


def _relation(part: QueryPart, hop: Hop) -> tuple[str, str, str]:
    ends = (part.entity, hop.part.entity) if hop.forward else (hop.part.entity, part.entity)
    return ends[0], hop.label, ends[1]


def _contains(text: str, name: str) -> bool:
    place = text.find(name)
    while place >= 0:
        before, after = text[place - 1 : place], text[place + len(name) : place + len(name) + 1]
        if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
            return True
        place = text.find(name, place + 1)
    return False
