"""Generated retrieval episodes: lines of real text with needles in them, then questions and their answers.

Words, depths and templates differ from those of `arcforge_core.eval.long_context`, so that the evaluation measures
retrieval and not a memorised pattern.
"""

from __future__ import annotations

import bisect
import functools
import random
import re
from collections.abc import Iterator, Sequence

from arcforge_core.configs import RetrievalDataConfig, StdlibDataConfig
from arcforge_core.contracts.data import Document, DocumentSource
from arcforge_core.data.sources.needles import EVALUATION_WORDS, TRAINING_DEPTHS, TRAINING_SYLLABLES, draw_words
from arcforge_core.data.sources.text import StdlibSource, digest
from arcforge_core.data.split import in_order_of_the_split, unique
from arcforge_core.errors import DataError

RECORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("{key} = {value}", ("{key} = ",)),
    ("{key}: {value}", ("{key}: ",)),
    ("{key} -> {value}", ("{key} -> ",)),
    ("{key},{value}", ("{key},", "row {key}, column 2: ")),
    ("'{key}': {value},", ("'{key}': ", "table['{key}'] == ")),
    ("| {key} | {value} |", ("| {key} | ",)),
    ("<{key}>{value}</{key}>", ("<{key}>", "inside <{key}>: ")),
    ("{key}({value})", ("{key}(", "{key} was called with ")),
    ("set {key} to {value}", ("set {key} to ", "{key} was set to ")),
    ("assert {key} == {value}", ("assert {key} == ", "{key} equals ")),
    ("{key} has number {value};", ("{key} has number ", "number of {key}: ")),
    ("Entry {key} holds {value}.", ("Entry {key} holds ", "Found under {key}: ")),
    ("Box {key} was sold for {value} coins.", ("Box {key} was sold for ", "For box {key} they paid ")),
    ("# see {key} on page {value}", ("# see {key} on page ", "{key} is on page ")),
)
"""A needle, and prefixes of its answer: the needle's own text up to the value, then paraphrases."""
QUESTIONS = (
    "{cue}{value}\n",
    "? {key}\n{cue}{value}\n",
    "Recall {key}.\n{cue}{value}\n",
    "Q: {key}?\nA: {cue}{value}\n",
)
MADE_UP = 0.5
"""Share of the episodes whose needles use words drawn from their text, so that there is nothing to memorise."""
JOINTS = (" ", " = ", ": ", " {a} ", " {a} {b} ", ", {a}: ", "-", " ({a}) ")
"""Text between a key and its value; a and b are drawn."""
CHARACTERS_PER_PAIR = 100
"""A needle with its question takes about half of that, so at least half of an episode is text."""
DIGITS = (3, 5)


class RetrievalSource:
    """Episodes with the standard library's text as filler.

    The text of an episode comes from documents that are adjacent in the order of the split, so that most episodes
    quote one side only; an episode that quotes held-out text is held out.

    Args:
        config: number and sizes of the episodes.
        texts: source of the filler; None: the running Python's library.
    """

    text_from = "stdlib"

    def __init__(self, config: RetrievalDataConfig, texts: DocumentSource | None = None) -> None:
        self._config = config
        self._texts: DocumentSource = texts or StdlibSource(StdlibDataConfig(functions=0.0))
        self.text_prefix = ""

    def fingerprint(self) -> str:
        """Returns a hash of the filler's fingerprint, of the options and of the episode templates."""
        config = self._config
        sizes = (config.min_characters, config.max_characters, config.min_pairs, config.max_pairs)
        made_of = (RECORDS, MADE_UP, JOINTS, QUESTIONS, TRAINING_SYLLABLES, TRAINING_DEPTHS, DIGITS)
        return digest(
            self._texts.fingerprint(), self.text_prefix, config.episodes, sizes, config.seed, config.learn, made_of
        )

    def documents(self) -> Iterator[Document]:
        """Yields the episodes.

        Raises:
            DataError: there is less text than an episode of the largest size needs.
        """
        text, ends, keys, licences = self._filler
        config = self._config
        if len(text) < config.max_characters:
            raise DataError(
                f"data.max_characters={config.max_characters}: the corpus has only {len(text):,} characters"
            )
        for number in range(config.episodes):
            draw = random.Random(f"{config.seed}/{number}")
            size = draw.randint(config.min_characters, config.max_characters)
            start = draw.randrange(len(text) - size + 1)
            start = text.rfind("\n", 0, start) + 1
            first = bisect.bisect_right(ends, start)
            last = bisect.bisect_left(ends, min(start + size, len(text)))
            pairs = min(draw.randint(config.min_pairs, config.max_pairs), size // CHARACTERS_PER_PAIR)
            context, questions = make_episode(draw, text[start : start + size], pairs)
            yield Document(
                f"retrieval/{number}", context + questions, "retrieval", licences[first],
                text_of=tuple(self.text_prefix + key for key in keys[first : last + 1]),
                learnt_from=0 if config.learn == "all" else len(context),
            )  # fmt: skip

    @functools.cached_property
    def _filler(self) -> tuple[str, list[int], list[str], list[str]]:
        """Returns the text of all documents in the order of the split, and each one's end, key and licence."""
        documents = in_order_of_the_split(unique(self._texts.documents()), self.text_prefix)
        texts = [d.text if d.text.endswith("\n") else d.text + "\n" for d in documents]
        ends = [0]
        for part in texts:
            ends.append(ends[-1] + len(part))
        return "".join(texts), ends[1:], [d.key for d in documents], [d.licence for d in documents]


def make_episode(draw: random.Random, text: str, pairs: int) -> tuple[str, str]:
    """Returns the needles in their filler, and the questions with their answers.

    Together they have at most ``len(text)`` characters, or slightly more if `text` is too short for its pairs.

    Args:
        draw: a generator with no other user.
        text: filler; its end is dropped to make room.
        pairs: number of needles. Most of them are asked for, each once, in random order.
    """
    words = draw_words(draw, TRAINING_SYLLABLES, 2 * pairs, draw.choice((2, 2, 3)), set(re.findall("[a-z]+", text)))
    keys, values = words[:pairs], words[pairs:]
    if draw.random() < 0.75:
        values = _numbers(draw, pairs)
    known = sorted(set(re.findall(r"\b[a-z]{2,8}\b", text)) - EVALUATION_WORDS)
    one = made_up_record(draw, known) if known and draw.random() < MADE_UP else draw.choice(RECORDS)
    kinds = [one] * pairs if draw.random() < 0.5 or one not in RECORDS else draw.choices(RECORDS, k=pairs)
    needles = [
        record.format(key=key, value=value) + "\n" for (record, _), key, value in zip(kinds, keys, values, strict=True)
    ]
    ask = draw.choice(QUESTIONS)
    questions = [
        ask.format(key=keys[n], value=values[n], cue=draw.choice(kinds[n][1]).format(key=keys[n]))
        for n in draw.sample(range(pairs), pairs - pairs // 8)
    ]
    room = len(text) - len("".join(needles)) - len("".join(questions)) - pairs
    filler = text[: max(0, room)].rsplit("\n", 1)[0] + "\n"
    return scatter(draw, filler, needles), "".join(questions)


def made_up_record(draw: random.Random, words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Returns a needle with some of these words around its key, and the needle's text up to the value as its cue."""
    before = "".join(f"{word} " for word in draw.choices(words, k=draw.randint(0, 3)))
    a, b = draw.choices(words, k=2)
    cue = before + "{key}" + draw.choice(JOINTS).format(a=a, b=b)
    return cue + "{value}" + draw.choice(("", ".", ";", f" {a}")), (cue,)


def scatter(draw: random.Random, filler: str, needles: Sequence[str]) -> str:
    """Returns `filler` with the needles at depths of `TRAINING_DEPTHS`, between lines or else between words."""
    lines, words = ([match.end() for match in re.finditer(ends, filler)] for ends in (r"\n", r"\s"))
    placed = []
    for needle in needles:
        low, high = (round(depth * len(filler)) for depth in draw.choice(TRAINING_DEPTHS))
        places = _between(lines, low, high) or _between(words, low, high) or range(low, high + 1)
        placed.append((draw.choice(places), needle))
    parts, end = [], 0
    for place, needle in sorted(placed):
        parts.append(filler[end:place])
        if place and filler[place - 1] != "\n":
            parts.append("\n")
        parts.append(needle)
        end = place
    return "".join([*parts, filler[end:]])


def _between(ascending: Sequence[int], low: int, high: int) -> Sequence[int]:
    return ascending[bisect.bisect_left(ascending, low) : bisect.bisect_right(ascending, high)]


def _numbers(draw: random.Random, count: int) -> list[str]:
    """Returns distinct numbers, each with a random count of digits."""
    numbers: dict[str, None] = {}
    while len(numbers) < count:
        digits = draw.randint(*DIGITS)
        numbers[str(draw.randrange(10 ** (digits - 1), 10**digits))] = None
    return list(numbers)
