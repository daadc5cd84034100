"""The text that a reader sees, and characters that a program sees otherwise than a reader."""

from __future__ import annotations

import re
import unicodedata

from arcforge_rl.objectives.text import HIDDEN

TWINS = str.maketrans(
    "АВЕЅІЈКМНОРСТУХаеѕіјорсухԁԛԝһΑΒΕΖΗΙΚΜΝΟΡΤΥΧονικυρτıℓ",
    "ABESIJKMHOPCTYXaesijopcyxdqwhABEZHIKMNOPTYXovikuptil",
)
"""Cyrillic, Greek and other letters that look like Latin ones (Unicode's confusables of single Latin letters)."""
SYMBOLS = ("So", "Sk", "Me")
"""Unicode categories of pictures and their modifiers, beyond the signs of Latin-1 such as ` ^ \u00b0."""
LATIN_1 = "\u00ff"
PRINTED = re.compile(r"[\t\n\r -~\u2013\u2014\u2018\u2019\u201c\u201d]*")
"""A text of which everything is seen as it is."""
SPACE = frozenset("\n\t\r")
WORD = re.compile(r"\S+")


def plain(text: str) -> str:
    """Returns the text that a reader sees, in the characters of English prose.

    Letters that only look Latin become Latin, and compositions one character (NFKC); hidden characters, pictures and
    marks that are no part of a letter go, without a space in their place.
    """
    if PRINTED.fullmatch(text):
        return text
    seen = unicodedata.normalize("NFKC", "".join(c for c in text if not _is_hidden(c))).translate(TWINS)
    return "".join(c for c in seen if not _is_picture(c) and unicodedata.category(c) != "Mn")


def pictures(text: str) -> int:
    """Returns how many pictures, such as emoji, a text has."""
    return 0 if PRINTED.fullmatch(text) else sum(map(_is_picture, text))


def disguised(text: str) -> int:
    """Returns how many words have characters that are hidden, of another script, or stacked marks."""
    if PRINTED.fullmatch(text):
        return 0
    return sum(any(_is_strange(c) for c in unicodedata.normalize("NFC", word)) for word in WORD.findall(text))


def _is_hidden(c: str) -> bool:
    return unicodedata.category(c) in HIDDEN and c not in SPACE


def _is_picture(c: str) -> bool:
    return c > LATIN_1 and unicodedata.category(c) in SYMBOLS


def _is_strange(c: str) -> bool:
    """Returns whether a character is hidden, a mark without its letter, or a letter that is not plain Latin."""
    category = unicodedata.category(c)
    if category[0] == "L":
        return not unicodedata.name(c, "").startswith("LATIN") or unicodedata.normalize("NFKC", c) != c
    return _is_hidden(c) or category in ("Mn", "Me")
