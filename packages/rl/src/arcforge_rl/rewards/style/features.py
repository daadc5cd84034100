"""Figures of a text's style, whatever it is about. F: features; N: texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arcforge_rl.objectives.creativity import STOCK
from arcforge_rl.objectives.text import BULLET, FUNCTION_WORDS, HEADING, NUMBERED, sentences, words
from arcforge_rl.rewards.style.plain import disguised, pictures, plain

Array = NDArray[np.float64]

PHRASES = (
    *STOCK,
    "as an ai", "as a language model", "great question", "i hope this helps", "let me know if", "feel free to",
    "happy to help", "certainly", "absolutely", "of course", "sure thing", "here is a", "here's a", "in conclusion",
    "in summary", "to sum up", "it is worth noting", "it's worth noting", "it's important to", "plays a crucial role",
    "delve", "rich tapestry", "game changer", "look no further", "whether you're", "step by step",
)  # fmt: skip
"""Phrases that assistants are fond of, in lower case."""
BOLD = re.compile(r"\*\*\S(?:[^*\n]*\S)?\*\*|__\S(?:[^_\n]*\S)?__")
FENCE = re.compile(r"^```", re.MULTILINE)
TABLE = re.compile(r"^[ \t]*\|.*\|[ \t]*$", re.MULTILINE)
WORDS = tuple(sorted(FUNCTION_WORDS))
LONG, SHORT = 30, 6
"""Words from which a sentence is long, and below which it is short."""
GROUPS = {
    "words": 4,
    "function words": len(WORDS),
    "sentences": 4,
    "marks": 4,
    "markdown": 4,
    "phrases": 1,
    "pictures": 1,
    "disguises": 1,
}
"""Features of each group, in the order of `features`."""

COUNTED = np.array([1, 0, 0, 0] + [1] * len(WORDS) + [0] * 4 + [1] * 11, dtype=np.bool_)
"""Whether a feature is the number of something per 100 words."""


def features(text: str) -> Array:
    """Returns the figures of a text, float64 [F]; zeros for a text without words.

    They are: function words per 100 words, mean and standard deviation of the letters of a word, different words per
    100 words; each function word per 100 words; mean and standard deviation of the words of a sentence, shares of long
    and short ones; commas, colons and semicolons, exclamation and question marks, dashes per 100 words; list lines,
    headings and tables, bold texts and fences per 100 words; stock phrases per 100 words; pictures, and words that look
    otherwise than they are spelt, per 100 words. All but the last two are of the text that a reader sees.
    """
    shown, text = text, plain(text)
    found = words(text)
    if not found:
        return np.zeros(sum(GROUPS.values()))
    rate = 100.0 / len(found)
    counts = dict.fromkeys(WORDS, 0)
    for word in found:
        if word in counts:
            counts[word] += 1
    letters = np.array([len(word) for word in found], dtype=np.float64)
    lengths = np.array([len(words(sentence)) for sentence in sentences(text)], dtype=np.float64)
    phrases = " ".join(text.lower().replace("\u2019", "'").split())
    return np.array(
        [
            *(rate * sum(counts.values()), letters.mean(), letters.std(), rate * len(set(found))),
            *(rate * count for count in counts.values()),
            *(lengths.mean(), lengths.std(), (lengths >= LONG).mean(), (lengths < SHORT).mean()),
            *(rate * sum(map(text.count, marks)) for marks in (",", ":;", "!?", "\u2013\u2014")),
            rate * (len(BULLET.findall(text)) + len(NUMBERED.findall(text))),
            rate * (len(HEADING.findall(text)) + len(TABLE.findall(text))),
            rate * len(BOLD.findall(text)),
            rate * len(FENCE.findall(text)),
            rate * sum(map(phrases.count, PHRASES)),
            rate * pictures(shown),
            rate * disguised(shown),
        ]
    )


def all_features(texts: Sequence[str]) -> Array:
    """Returns the figures of texts, float64 [N, F]."""
    return np.stack([features(text) for text in texts])
