"""Kinds of constraints, and the draft of an oracle that constraints change one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from arcforge_rl.objectives.topics import Sentences

LENGTH, WORDING, LAYOUT, ENDS, CASE = range(5)
"""Phases in which kinds change a draft: its sentences, their words, how they are laid out, both ends, case."""
Arguments = tuple[Any, ...]
"""Plain data: numbers and texts."""


@dataclass
class Draft:
    """A reply under construction.

    Attributes:
        supply: gives further sentences about the topic.
        units: sentences, until the layout.
        text: the reply, from the layout on.
    """

    supply: Sentences
    units: list[str] = field(default_factory=list)
    text: str = ""

    def add(self, end: str = ".") -> None:
        """Appends a sentence."""
        self.units.append(self.supply.next(end))

    def weave(self, index: int, words: str) -> None:
        """Adds words to a sentence, before its end."""
        unit = self.units[index]
        self.units[index] = f"{unit[:-1]} {words}{unit[-1]}"


@dataclass(frozen=True)
class Kind:
    """A kind of constraint.

    Attributes:
        name: of the kind.
        major: its family.
        claims: aspects that it decides alone; two kinds with a claim in common are never asked for together.
        phase: when it changes a draft.
        draw: returns arguments for a topic.
        says: the instruction, from the arguments.
        holds: whether a text satisfies it: ``holds(text, *arguments)``.
        make: changes a draft so that it holds: ``make(draft, *arguments)``.
    """

    name: str
    major: str
    claims: frozenset[str]
    phase: int
    draw: Callable[[random.Random, str], Arguments]
    says: Callable[..., str]
    holds: Callable[..., bool]
    make: Callable[..., None]


def kind(
    name: str,
    major: str,
    claims: str,
    phase: int,
    draw: Callable[[random.Random, str], Arguments],
    says: Callable[..., str],
    holds: Callable[..., bool],
    make: Callable[..., None],
) -> Kind:
    """Returns a kind; `claims` are words of one text."""
    return Kind(name, major, frozenset(claims.split()), phase, draw, says, holds, make)


@dataclass(frozen=True)
class Constraint:
    """One constraint of a task.

    Attributes:
        kind: name of its kind.
        arguments: of the kind's functions.
    """

    kind: str
    arguments: Arguments


def one_number(low: int, high: int) -> Callable[[random.Random, str], Arguments]:
    """Returns a function that draws a number between two bounds, both included."""
    return lambda draw, topic: (draw.randint(low, high),)
