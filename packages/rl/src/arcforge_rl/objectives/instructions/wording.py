"""Kinds of constraints on words and letters."""

from __future__ import annotations

import random
import re

from arcforge_rl.objectives.instructions.kind import WORDING, Arguments, Draft, kind
from arcforge_rl.objectives.text import sentences, words

ASKED = (
    "copper", "lantern", "village", "silver", "whisper", "corner", "morning", "journey", "shadow", "harvest",
    "blanket", "ribbon", "pocket", "thunder", "meadow", "feather", "captain", "bottle", "kettle", "ocean",
)  # fmt: skip
"""Words that no sentence of `topics` has."""
AVOIDED = ("very", "people", "many", "good", "best", "simple", "small", "nothing", "old", "often", "work", "time")
LONG = 9
"""Letters of a long word."""


def _asked(draw: random.Random, topic: str) -> Arguments:
    return (draw.choice(ASKED),)


def _with(draft: Draft, *wanted: str) -> None:
    for number, word in enumerate(wanted):
        draft.weave(number % len(draft.units), f"near the {word}")


def _without(draft: Draft, *banned: str) -> None:
    pattern = re.compile(rf"\b(?:{'|'.join(banned)})\b ?", re.IGNORECASE)
    units = [pattern.sub("", unit) for unit in draft.units]
    draft.units = [unit[:1].upper() + unit[1:] for unit in units]


def _times(draft: Draft, word: str, count: int) -> None:
    if len(draft.units) < count:
        draft.units += draft.supply.take(count - len(draft.units))
    for number in range(count):
        draft.weave(number, ("by the", "with a", "like some", "beyond the", "from one")[number % 5] + f" {word}")


def _letter(draw: random.Random, topic: str) -> Arguments:
    return draw.choice("abdfgmpw"), draw.randint(3, 8)


def _letters(draft: Draft, letter: str, least: int) -> None:
    for _ in range(12):
        if " ".join(draft.units).lower().count(letter) >= least:
            return
        draft.add()


def _missing_letter(draw: random.Random, topic: str) -> Arguments:
    return (draw.choice([letter for letter in "jkqxz" if letter not in topic]),)


def _lipogram(draft: Draft, letter: str) -> None:
    kept = [" ".join(word for word in unit[:-1].split() if letter not in word.lower()) for unit in draft.units]
    draft.units = [
        f"{text[:1].upper()}{text[1:]}{unit[-1]}" for text, unit in zip(kept, draft.units, strict=True) if text
    ]


def _long_words(text: str, least: int) -> bool:
    return sum(len(word) >= LONG for word in words(text)) >= least


def _make_long(draft: Draft, least: int) -> None:
    for word in ("wonderful", "remarkable", "surprising", "magnificent", "delightful", "comfortable")[:least]:
        draft.weave(len(draft.units) - 1 if word == "wonderful" else 0, f"in a {word} way")


def _in_sentence(text: str, word: str, place: int) -> bool:
    found = sentences(text)
    return bool(found) and word in words(found[place])


KINDS = (
    kind("include_words", "wording", "", WORDING, lambda draw, topic: tuple(draw.sample(ASKED, 2)),
        lambda *asked: f"Use the words {' and '.join(map(repr, asked))}.",
        lambda text, *asked: set(asked) <= set(words(text)), _with),
    kind("exclude_words", "wording", "", WORDING, lambda draw, topic: tuple(draw.sample(AVOIDED, 3)),
        lambda *banned: f"Do not use the words {', '.join(map(repr, banned))}.",
        lambda text, *banned: not set(banned) & set(words(text)), _without),
    kind("word_times", "wording", "", WORDING, lambda draw, topic: (draw.choice(ASKED), draw.randint(2, 4)),
        lambda word, count: f"Use the word {word!r} exactly {count} times.",
        lambda text, word, count: words(text).count(word) == count, _times),
    kind("letter_at_least", "wording", "", WORDING, _letter,
        lambda letter, least: f"The letter {letter!r} must occur at least {least} times.",
        lambda text, letter, least: text.lower().count(letter) >= least, _letters),
    kind("without_letter", "wording", "letters", WORDING, _missing_letter,
        lambda letter: f"Do not use the letter {letter!r} anywhere.",
        lambda text, letter: bool(text.strip()) and letter not in text.lower(), _lipogram),
    kind("first_sentence_word", "wording", "", WORDING, _asked,
        lambda word: f"The first sentence must have the word {word!r}.",
        lambda text, word: _in_sentence(text, word, 0), lambda draft, word: draft.weave(0, f"beside the {word}")),
    kind("last_sentence_word", "wording", "last", WORDING, _asked,
        lambda word: f"The last sentence must have the word {word!r}.",
        lambda text, word: _in_sentence(text, word, -1), lambda draft, word: draft.weave(-1, f"beside the {word}")),
    kind("long_words", "wording", "letters", WORDING, lambda draw, topic: (draw.randint(2, 5),),
        lambda least: f"Use at least {least} words of {LONG} letters or more.", _long_words, _make_long),
)  # fmt: skip
"""Eight kinds."""
