"""Filler text, and the amount of it that fills a prompt up to its limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from arcforge_core.errors import DataError

SEARCH_WIDTH = 40
"""Distance in characters within which `insert` searches for a word boundary."""


class Filler:
    """Endless text: one document from a random line on, then the others in random order, repeated."""

    def __init__(self, texts: Sequence[str], draw: random.Random) -> None:
        """`texts` are documents; blank ones are left out.

        Raises:
            DataError: all documents are blank.
        """
        self._texts = [text for text in texts if text.strip()]
        if not self._texts:
            raise DataError("long context: there is no text to fill prompts with")
        self._draw = draw
        first = draw.choice(self._texts)
        line = draw.randrange(len(first))
        self._text = first[first.rfind("\n", 0, line) + 1 :]

    def take(self, characters: int) -> str:
        """Returns the first `characters` characters; every call starts at the same place."""
        while len(self._text) < characters:
            order = self._draw.sample(self._texts, len(self._texts))
            self._text = "\n".join([self._text, *order])
        return self._text[:characters]


def largest(measure: Callable[[int], int], limit: int, least: int) -> int | None:
    """Returns the largest n >= `least` with ``measure(n) <= limit``, or None if `least` is already too large.

    `measure` must grow without bound; where it is not quite monotonic, n is close to the largest.
    It is called a few times only, because each call tokenises a whole prompt.
    """
    low = least
    at_low = start = measure(least)
    if at_low > limit:
        return None
    high, at_high, tries = low, at_low, 0
    while at_high <= limit:
        low, at_low, tries = high, at_high, tries + 1
        rate = (low - least) / (at_low - start) if at_low > start else 3.0  # characters or words per token
        high = low + max(2**tries, round(1.05 * rate * (limit - at_low)))
        at_high = measure(high)
    halve = False
    while high - low > 1 and at_low < limit:
        # by proportion, which is nearly right the first time; every other time by bisection, which bounds the calls
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
    """Returns the position nearest to `place` next to white space, or `place` itself if none is near."""
    for distance in range(SEARCH_WIDTH):
        for near in (place - distance, place + distance):
            if near in (0, len(text)) or (0 < near < len(text) and (text[near - 1].isspace() or text[near].isspace())):
                return near
    return place
