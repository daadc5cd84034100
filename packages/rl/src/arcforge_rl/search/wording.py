"""Questions in words. Entities are described by relations and clues; no name of theirs is said."""

from __future__ import annotations

import random

from arcforge_rl.search.graph import MENTIONS
from arcforge_rl.search.query import COUNT, FIRST, LETTERS, WORD, Clue, Hop, QueryPart, last_name

RELATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Defined in": (("is defined in {}", "belongs to {}"), ("defines {}", "is where one finds {}")),
    "Base classes": (("derives from {}", "is built upon {}"), ("is a base class of {}", "is inherited by {}")),
    "Imports": (("imports {}", "depends on {}"), ("is imported by {}", "is needed by {}")),
    "Raises": (("raises {}", "can fail with {}"), ("is raised by {}", "is how {} reports a failure")),
    "Uses": (("uses {}", "calls {}"), ("is used by {}", "is called by {}")),
    "Part of": (("is part of {}", "lies inside {}"), ("contains {}", "has {} inside it")),
    "Links to": (("links to {}", "refers its readers to {}"), ("is linked from {}", "is one to which {} links")),
    MENTIONS: (("mentions {} in its text", "speaks of {}"), ("is mentioned in the text about {}",)),
}
"""Wordings of relations, read from subject to object and back; other labels are quoted."""
ENDING = "Search the pages and answer with the title of its page alone, on the last line."


def question(part: QueryPart, draw: random.Random) -> str:
    """Returns the question whose answer is a part's entity."""
    opening = draw.choice(("Which {0} is meant?", "Find {1}.", "Name {1}.")).format(part.kind, article(part.kind))
    said = [f"It {_relation(hop, draw)}." for hop in part.hops]
    clues = _clues(part, draw)
    if clues:
        said.insert(draw.randrange(len(said) + 1), f"It is one {_joined(clues)}.")
    return f"{opening} {' '.join(said)} {ENDING}"


def article(noun: str) -> str:
    """Returns a noun with its indefinite article."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _described(part: QueryPart, draw: random.Random) -> str:
    said = [*_clues(part, draw), *[f"that {_relation(hop, draw)}" for hop in part.hops]]
    return f"{article(part.kind)} {_joined(said)}" if said else f"some {part.kind}"


def _relation(hop: Hop, draw: random.Random) -> str:
    label = hop.label.lower()
    quoted = (f"names, under “{label}”, {{}}",), (f"is named, under “{label}”, by {{}}",)
    ways = RELATIONS.get(hop.label, quoted)[0 if hop.forward else 1]
    return draw.choice(ways).format(_described(hop.part, draw))


def _clues(part: QueryPart, draw: random.Random) -> list[str]:
    words = [f"“{clue.text}”" for clue in part.clues if clue.kind == WORD]
    way = draw.choice(("whose page has the {} {}", "described with the {} {}"))
    said = [way.format("words" if len(words) > 1 else "word", _joined(words))] if words else []
    dotted = last_name(part.entity) != part.entity
    return said + [_clue(clue, dotted) for clue in part.clues if clue.kind != WORD]


def _clue(clue: Clue, dotted: bool) -> str:
    name = "whose own name, after the last dot," if dotted else "whose name"
    if clue.kind == FIRST:
        return f"{name} begins with “{clue.text}”"
    between = f"{clue.low}" if clue.low == clue.high else f"between {clue.low} and {clue.high}"
    if clue.kind == LETTERS:
        return f"{name} has {between} characters"
    assert clue.kind == COUNT
    return f"with {between} entries under “{clue.text.lower()}”"


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
