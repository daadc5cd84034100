"""Kinds of constraints on length."""

from __future__ import annotations

import random

from arcforge_rl.objectives.instructions.kind import LENGTH, Arguments, Draft, kind, one_number
from arcforge_rl.objectives.text import sentences, words


def _at_least(draft: Draft, least: int) -> None:
    while len(words(" ".join(draft.units))) < least:
        draft.add()


def _at_most(draft: Draft, most: int) -> None:
    # other constraints may still add a few words
    while len(draft.units) > 1 and len(words(" ".join(draft.units))) > most * 0.7:
        draft.units.pop()


def _between(draw: random.Random, topic: str) -> Arguments:
    low = draw.randrange(20, 60, 5)
    return low, low + draw.randrange(15, 35, 5)


def _make_between(draft: Draft, low: int, high: int) -> None:
    del draft.units[1:]
    _at_least(draft, low)


def _sentences(draft: Draft, count: int) -> None:
    del draft.units[count:]
    while len(draft.units) < count:
        draft.add()


def _characters(draft: Draft, most: int) -> None:
    while len(draft.units) > 1 and len(" ".join(draft.units)) > most * 0.7:
        draft.units.pop()


KINDS = (
    kind("at_least_words", "length", "length", LENGTH, lambda draw, topic: (draw.randrange(30, 90, 5),),
        lambda least: f"Write at least {least} words.", lambda text, least: len(words(text)) >= least, _at_least),
    kind("at_most_words", "length", "length", LENGTH, lambda draw, topic: (draw.randrange(25, 60, 5),),
        lambda most: f"Write at most {most} words.", lambda text, most: 0 < len(words(text)) <= most, _at_most),
    kind("between_words", "length", "length", LENGTH, _between,
        lambda low, high: f"Use between {low} and {high} words.",
        lambda text, low, high: low <= len(words(text)) <= high, _make_between),
    kind("exactly_sentences", "length", "length layout first last", LENGTH, one_number(2, 6),
        lambda count: f"Write exactly {count} sentences.",
        lambda text, count: len(sentences(text)) == count and text.rstrip()[-1:] in ".!?", _sentences),
    kind("at_most_characters", "length", "length", LENGTH, lambda draw, topic: (draw.randrange(150, 400, 50),),
        lambda most: f"Stay within {most} characters.", lambda text, most: 0 < len(text) <= most, _characters),
    kind("short_sentences", "length", "layout", LENGTH, one_number(13, 16),
        lambda most: f"No sentence may have more than {most} words.",
        lambda text, most: all(len(words(one)) <= most for one in sentences(text)), lambda draft, most: None),
)  # fmt: skip
"""Six kinds."""
