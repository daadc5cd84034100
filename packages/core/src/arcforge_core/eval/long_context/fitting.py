"""Filler text, and how much of it makes a prompt as long as it may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from arcforge_core.errors import DataError

SEARCH_WIDTH = 40
"""Characters within which a place between two words is looked for."""


class Filler:
    """Text of documents without end: one from a random line on, then the others in random order, again and again."""

    def __init__(self, texts: Sequence[str], draw: random.Random) -> None:
        """`texts` are documents; blank ones are left out.

        Raises:
            DataError: there is no text.
        """
        self._texts = [text for text in texts if text.strip()]
        if not self._texts:
            raise DataError("long context: there is no text to fill prompts with")
        self._draw = draw
        first = draw.choice(self._texts)
        line = draw.randrange(len(first))
        self._text = first[first.rfind("\n", 0, line) + 1 :]

    def take(self, characters: int) -> str:
        """Returns the first characters; every call begins at the same one."""
        while len(self._text) < characters:
            order = self._draw.sample(self._texts, len(self._texts))
            self._text = "\n".join([self._text, *order])
        return self._text[:characters]


def largest(measure: Callable[[int], int], limit: int, least: int) -> int | None:
    """Returns the largest n >= `least` with ``measure(n) <= limit``; None when `least` itself is too much.

    `measure` grows without end, by and large: where it goes up and down by a little, n is one of the largest.
    It is called few times, because each call tokenises a whole prompt.
    """
    low = least
    at_low = start = measure(least)
    if at_low > limit:
        return None
    high, at_high, tries = low, at_low, 0
    while at_high <= limit:
        low, at_low, tries = high, at_high, tries + 1
        rate = (low - least) / (at_low - start) if at_low > start else 3.0  # characters or words a token
        high = low + max(2**tries, round(1.05 * rate * (limit - at_low)))
        at_high = measure(high)
    halve = False
    while high - low > 1 and at_low < limit:
        # by proportion, which is nearly right at once; every other time by halves, so that it always ends soon
        share = 0.5 if halve else (limit - at_low) / (at_high - at_low)
        halve = not halve
        middle = min(high - 1, max(low + 1, low + round(share * (high - low))))
        at_middle = measure(middle)
        if at_middle <= limit:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low


def insert(filler: str, needles: Sequence[tuple[float, str]]) -> str:
    """Returns `filler` with each needle at its depth: the share of the filler's characters before it.

    Needles go between words, and keep their order where depths are equal.
    """
    parts, end = [], 0
    for depth, needle in sorted(needles, key=lambda pair: pair[0]):
        place = max(end, _between_words(filler, round(depth * len(filler))))
        parts += [filler[end:place], needle]
        end = place
    return "".join([*parts, filler[end:]])


def _between_words(text: str, place: int) -> int:
    """Returns the place nearest to `place` that has white space beside it, or `place` itself when none is near."""
    for distance in range(SEARCH_WIDTH):
        for near in (place - distance, place + distance):
            if near in (0, len(text)) or (0 < near < len(text) and (text[near - 1].isspace() or text[near].isspace())):
                return near
    return place
