"""Measures of texts: words, sentences, paragraphs, lists, and what makes a text unsound; linear in its length."""

from __future__ import annotations

import functools
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from arcforge_core.contracts.environment import Reply

WORD = re.compile(r"[A-Za-z0-9\u00c0-\u024f]+(?:['\u2019-][A-Za-z0-9\u00c0-\u024f]+)*")
END = re.compile(r"[.!?]+[\"'\u201d)]*(?=\s|$)")
BULLET = re.compile(r"^[ \t]*[-*\u2022] +\S", re.MULTILINE)
NUMBERED = re.compile(r"^[ \t]*\d{1,3}[.)] +\S", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +\S", re.MULTILINE)
HIDDEN = ("Cc", "Cf", "Co", "Cs", "Cn")
"""Unicode categories of characters that no text shows."""
FUNCTION_WORDS = frozenset(
    [
        "the",
        "a",
        "an",
        "and",
        "or",
        "but",
        "of",
        "to",
        "in",
        "on",
        "at",
        "for",
        "with",
        "by",
        "from",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "as",
        "not",
        "no",
        "have",
        "has",
        "had",
        "do",
        "does",
        "can",
        "could",
        "will",
        "would",
        "may",
        "i",
        "you",
        "he",
        "she",
        "we",
        "they",
        "my",
        "your",
        "his",
        "her",
        "our",
        "their",
        "there",
        "when",
        "which",
        "who",
        "what",
        "if",
        "so",
        "than",
        "then",
        "also",
        "more",
        "most",
        "some",
        "all",
        "each",
        "every",
        "how",
        "about",
        "into",
        "over",
        "after",
        "before",
    ]
)
MOST_BITS = 5.6
"""Bits per character, by `bits_per_character`, above which a text is no English: prose has 4 to 5, codes 8 to 15."""
SHORTEST = 24
"""Characters from which `bits_per_character` says something."""


def words(text: str) -> list[str]:
    """Returns the words in lower case; apostrophes and hyphens inside a word belong to it."""
    return [word.lower() for word in WORD.findall(text)]


def sentences(text: str) -> list[str]:
    """Returns the parts that end with ``.``, ``!`` or ``?`` before white space, and a last one without an end."""
    found, start = [], 0
    for end in END.finditer(text):
        found.append(text[start : end.end()].strip())
        start = end.end()
    found.append(text[start:].strip())
    return [one for one in found if WORD.search(one)]


def paragraphs(text: str) -> list[str]:
    """Returns the parts between empty lines."""
    return [part.strip() for part in re.split(r"\n[ \t]*\n", text) if part.strip()]


def lines(text: str) -> list[str]:
    """Returns the lines that are not empty, stripped."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def ngrams(parts: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Returns the n-grams of a sequence of words."""
    return [tuple(parts[n : n + size]) for n in range(len(parts) - size + 1)]


def repetition(text: str, size: int = 4) -> float:
    """Returns the share of word n-grams that occurred before in the text; 0 for shorter ones."""
    grams = ngrams(words(text), size)
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def copied(text: str, source: str, size: int = 5) -> float:
    """Returns the share of a text's word n-grams that its source has; 0 for shorter texts."""
    grams, known = ngrams(words(text), size), set(ngrams(words(source), size))
    return sum(gram in known for gram in grams) / len(grams) if grams else 0.0


def function_words(text: str) -> float:
    """Returns the share of words that are English function words."""
    found = words(text)
    return sum(word in FUNCTION_WORDS for word in found) / len(found) if found else 0.0


@functools.cache
def _counts() -> tuple[Counter[str], Counter[str]]:
    """Returns counts of one to three characters, and of their beginnings, in the reference pages that Python ships."""
    from pydoc_data.topics import topics  # 700 kB, which only verifiers need

    text = _plain("\n".join(str(page) for page in topics.values()))
    grams: Counter[str] = Counter(text)
    grams.update(map("".join, itertools.pairwise(text)))
    grams.update(map("".join, zip(text, text[1:], text[2:], strict=False)))
    begun: Counter[str] = Counter()
    for gram, count in grams.items():
        begun[gram[:-1]] += count
    return grams, begun


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower())


@functools.lru_cache(maxsize=100_000)
def _bits(triple: str) -> float:
    """Returns the bits of a character after two others: trigrams interpolated with bigrams and single characters."""
    grams, begun = _counts()
    chance = 1e-4
    for gram in (triple[2:], triple[1:], triple):
        chance = (grams[gram] + 2.0 * chance) / (begun[gram[:-1]] + 2.0)
    return -math.log2(chance)


def bits_per_character(text: str) -> float:
    """Returns the bits that each character takes after the two before it, in English reference pages."""
    plain = _plain(text)
    if len(plain) < 3:
        return 0.0
    return sum(map(_bits, map("".join, zip(plain, plain[1:], plain[2:], strict=False)))) / (len(plain) - 2)


def foreign_letters(text: str) -> list[str]:
    """Returns the letters that are not Latin, and the full-width ones, which only look so."""
    return [c for c in sorted(set(text)) if c.isalpha() and not unicodedata.name(c, "").startswith("LATIN")]


def unsound(reply: Reply, prompt: str = "", *, most_copied: float = 0.4, most_repeated: float = 0.3) -> str:
    """Returns why a reply is no sound English text whatever was asked, or an empty text.

    Sound is: finished, not empty, no hidden or foreign letters, like English by its characters, without repetition and
    not the prompt again.

    Args:
        reply: the reply.
        prompt: of the reply.
        most_copied: accepted share of five-word phrases of the prompt.
        most_repeated: accepted share of four-word phrases that occurred before.
    """
    text = reply.text
    if reply.finish_reason != "stop":
        return f"the reply was cut off ({reply.finish_reason})"
    if not words(text):
        return "the reply has no word"
    if any(unicodedata.category(c) in HIDDEN for c in set(text) - {"\n", "\t"}):
        return "the reply has hidden characters"
    if strange := foreign_letters(text):
        return f"the reply has letters of another script: {''.join(strange[:10])}"
    visible = [c for c in text if not c.isspace()]
    if sum(map(str.isalpha, visible)) < 0.5 * len(visible):
        return "less than half of the reply are letters"
    if re.search(r"(\S)\1{7}", text):
        return "a character is repeated more than seven times"
    if len(text) >= SHORTEST and (bits := bits_per_character(text)) > MOST_BITS:
        return f"the reply does not read as English: {bits:.1f} bits a character"
    if (share := repetition(text)) > most_repeated:
        return f"{share:.0%} of the phrases repeat earlier ones"
    if prompt and (share := copied(text, prompt)) > most_copied:
        return f"{share:.0%} of the phrases are the prompt's"
    return ""
