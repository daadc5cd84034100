"""A graph of the statements of a corpus: entities, their names, relations between them.

A labelled line whose value is the name of another page's entity is a relation, if most values under that label are
names; so is a name in the prose, under the label `MENTIONS`.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from arcforge_rl.search.pages import ALIASES, KIND, Page

MENTIONS = "Mentions"
"""Label of relations that only the prose of a page states."""
NAME = re.compile(r"\w+(?:[.'-]\w+)*")
LONGEST_NAME = 5
"""Words of a name that is looked for in prose."""
MOST = 0.5
"""Share of the values under a label that name entities, from which its lines state relations."""
ENTRY = "entry"
"""Kind of a page that names none."""


@dataclass(frozen=True)
class GraphCorrection:
    """A fault of the graph that verification found.

    Attributes:
        subject, label, object: the relation, by titles.
        holds: whether the pages state it: a missing one is added, any other one removed.
        reason: in words.
    """

    subject: str
    label: str
    object: str
    holds: bool
    reason: str


@dataclass
class Graph:
    """Entities by their titles.

    Attributes:
        pages: by title.
        names: every name -> the entities that have it; only a name with one entity is that entity's.
        out: label -> subject -> its objects, sorted.
        back: label -> object -> its subjects, sorted.
        merged: titles of pages that are about the same entity as another page -> that page's title.
        loose: see `graph_of`.
        figures: counts of its making.
    """

    pages: Mapping[str, Page]
    names: dict[str, frozenset[str]]
    out: dict[str, dict[str, tuple[str, ...]]]
    back: dict[str, dict[str, tuple[str, ...]]]
    merged: Mapping[str, str]
    loose: bool = False
    figures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.degree: Counter[str] = Counter()
        for side in (self.out, self.back):
            for found in side.values():
                for entity, others in found.items():
                    self.degree[entity] += len(others)
        self.entities = tuple(title for title in self.pages if title not in self.merged)
        self.kinds: dict[str, frozenset[str]] = {}
        of_kind: dict[str, set[str]] = defaultdict(set)
        for entity in self.entities:
            of_kind[self.kind(entity)].add(entity)
        self.kinds = {kind: frozenset(found) for kind, found in of_kind.items()}
        with_word: dict[str, set[str]] = defaultdict(set)
        for entity in self.entities:
            for word in self.pages[entity].words:
                with_word[word].add(entity)
        self.words = {word: frozenset(found) for word, found in with_word.items()}

    def kind(self, entity: str) -> str:
        """Returns what an entity is, in lower case."""
        return (self.pages[entity].facts.get(KIND) or (ENTRY,))[0].lower()

    def group(self, entity: str) -> str:
        """Returns the group of an entity's page; its title if it has none."""
        return self.pages[entity].group or entity

    def others(self, entity: str, label: str, forward: bool) -> tuple[str, ...]:
        """Returns the objects of an entity's relations, or with `forward` False the subjects that name it."""
        side = self.out if forward else self.back
        found = side.get(label, {}).get(entity, ())
        return tuple({*found, *side.get(MENTIONS, {}).get(entity, ())}) if self.loose else found

    def answers(self, entity: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names that are an entity's alone, its title first, and those that are so in any case, folded."""
        own = [name for name in sorted(self.names) if self.names[name] == {entity} and name != entity]
        return (entity, *own), tuple(
            sorted(f for f in {n.casefold() for n in (entity, *own)} if self._folded[f] == {entity})
        )

    @functools.cached_property
    def _folded(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for name, owners in self.names.items():
            found[name.casefold()] |= owners
        return found


def graph_of(pages: Sequence[Page], corrections: Iterable[GraphCorrection] = (), loose: bool = False) -> Graph:
    """Returns the graph of a corpus, with its corrections.

    Args:
        pages: of the corpus.
        corrections: made after the pages were read.
        loose: whether a name of several entities is taken to mean each of them, and a name in the prose to state every
            relation; such a graph has all that a reader might take the pages to say.
    """
    by_title = {page.title: page for page in pages}
    figures: Counter[str] = Counter(pages=len(by_title))
    names: dict[str, set[str]] = defaultdict(set)
    for page in pages:
        for name in page.facts.get(ALIASES, ()):
            if name not in by_title:  # a title is the name of its own page's entity
                names[name].add(page.title)
    merged = _merged(by_title)
    for title in by_title:
        names[title] = {title}
    kept = {name: frozenset(merged.get(one, one) for one in owners) for name, owners in names.items()}
    figures["names"] = len(kept)
    figures["names of several entities"] = sum(len(owners) > 1 for owners in kept.values())
    relations: set[tuple[str, str, str]] = set()
    labels = _relational(pages, kept)
    for page in pages:
        subject = merged.get(page.title, page.title)
        stated = {subject}
        for label, values in page.facts.items():
            if label in labels:
                found = {one for value in values for one in _meant(value, kept, loose)}
                relations |= {(subject, label, one) for one in found - {subject}}
                stated |= found
        new = _mentioned(page, kept, loose) - ({subject} if loose else stated)
        relations |= {(subject, MENTIONS, one) for one in new}
    for wrong in corrections:
        relation = (wrong.subject, wrong.label, wrong.object)
        relations = relations | {relation} if wrong.holds else relations - {relation}
    figures["relations"] = len(relations)
    figures["merged pages"] = len(merged)
    return Graph(by_title, kept, _sides(relations, 0), _sides(relations, 2), merged, loose, figures)


def _relational(pages: Sequence[Page], names: Mapping[str, frozenset[str]]) -> frozenset[str]:
    values: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for page in pages:
        for label, found in page.facts.items():
            values[label] += len(found)
            known[label] += sum(value in names for value in found)
    return frozenset(one for one in values if one not in (KIND, ALIASES) and known[one] >= MOST * values[one])


def _merged(pages: Mapping[str, Page]) -> dict[str, str]:
    """Returns the pages that claim the title of a page which claims theirs: both are about one entity."""
    found: dict[str, str] = {}
    for title, page in pages.items():
        for name in page.facts.get(ALIASES, ()):
            if name < title and name in pages and title in pages[name].facts.get(ALIASES, ()):
                found[title] = found.get(name, name)
    return found


def _meant(value: str, names: Mapping[str, frozenset[str]], loose: bool) -> frozenset[str]:
    """Returns the entity of a name; nothing for a name of several, unless `loose`."""
    found = names.get(value, frozenset())
    return found if loose or len(found) == 1 else frozenset()


def _mentioned(page: Page, names: Mapping[str, frozenset[str]], loose: bool) -> set[str]:
    """Returns the entities whose names are in a page's prose; a name of lower-case letters alone may be a word."""
    found: set[str] = set()
    for line in page.prose.splitlines():
        tokens = [*NAME.finditer(line)]
        for first, token in enumerate(tokens):
            for last in tokens[first : first + LONGEST_NAME]:
                name = line[token.start() : last.end()]
                if name in names and len(name) > 3 and _is_name(name, starts=not token.start()):
                    found |= _meant(name, names, loose)
    return found


def _is_name(name: str, starts: bool) -> bool:
    """Returns whether a text is no ordinary word: beyond letters of one case, or a capital within a line."""
    return not (name.isalpha() and name[1:].islower()) or (name[0].isupper() and not starts)


def _sides(relations: Iterable[tuple[str, str, str]], key: int) -> dict[str, dict[str, tuple[str, ...]]]:
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for relation in sorted(relations):
        found[relation[1]][relation[key]].append(relation[2 - key])
    return {label: {entity: tuple(sorted(others)) for entity, others in side.items()} for label, side in found.items()}
