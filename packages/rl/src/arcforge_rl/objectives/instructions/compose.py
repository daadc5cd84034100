"""Draws constraints that go together, writes an oracle for them, and checks replies strictly and loosely."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from arcforge_core.contracts.environment import Reply
from arcforge_rl.objectives.instructions import layout, length, marks, wording
from arcforge_rl.objectives.instructions.kind import ENDS, Constraint, Draft, Kind
from arcforge_rl.objectives.text import unsound
from arcforge_rl.objectives.topics import Sentences, names_topic

KINDS: Mapping[str, Kind] = {one.name: one for one in (*length.KINDS, *wording.KINDS, *layout.KINDS, *marks.KINDS)}
"""Kinds by name."""
UNITS = 3
"""Sentences of a draft before its constraints."""


def holds(constraint: Constraint, text: str) -> bool:
    """Returns whether a text satisfies a constraint."""
    return KINDS[constraint.kind].holds(text, *constraint.arguments)


def said(constraint: Constraint) -> str:
    """Returns the instruction."""
    return KINDS[constraint.kind].says(*constraint.arguments)


def variants(text: str) -> list[str]:
    """Returns a text, and the text without its first or last line or without asterisks, in all combinations."""
    found = []
    for first in (0, 1):
        for last in (0, 1):
            rows = text.split("\n")
            kept = "\n".join(rows[first : len(rows) - last]).strip()
            found += [kept, kept.replace("*", "")]
    return list(dict.fromkeys(found))


def loosely(constraint: Constraint, text: str) -> bool:
    """Returns whether one of the `variants` of a text satisfies a constraint."""
    return any(holds(constraint, variant) for variant in variants(text) if variant)


def draw_constraints(draw: random.Random, topic: str, names: Sequence[str], count: int) -> list[Constraint]:
    """Returns up to `count` constraints of different kinds that claim nothing in common, by the order of `KINDS`."""
    chosen: list[str] = []
    claimed: set[str] = set()
    for name in draw.sample(list(names), len(names)):
        if len(chosen) < count and not KINDS[name].claims & claimed:
            chosen.append(name)
            claimed |= KINDS[name].claims
    return [Constraint(name, KINDS[name].draw(draw, topic)) for name in KINDS if name in chosen]


def write(constraints: Sequence[Constraint], topic: str, draw: random.Random) -> str:
    """Returns a text about a topic that is meant to satisfy the constraints; `fits` says whether it does."""
    supply = Sentences(topic, draw)
    draft = Draft(supply, supply.take(UNITS))
    by_phase = sorted(constraints, key=lambda one: KINDS[one.kind].phase)
    for constraint in by_phase:
        phase = KINDS[constraint.kind].phase
        if phase >= ENDS and not draft.text:
            draft.text = " ".join(draft.units)
        KINDS[constraint.kind].make(draft, *constraint.arguments)
    return draft.text or " ".join(draft.units)


def fits(constraints: Sequence[Constraint], topic: str, prompt: str, text: str) -> bool:
    """Returns whether a text is sound, about its topic, and satisfies all constraints."""
    sound = not unsound(Reply(text), prompt) and names_topic(text, topic)
    return sound and all(holds(one, text) for one in constraints)
