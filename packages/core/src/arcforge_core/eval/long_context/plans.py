"""The plan of each task: its templates, its needles and their depths, and the prompt around any amount of filler.

The templates are short enough for a context of 128 tokens of a small vocabulary.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arcforge_core.configs import EVALUATION_DEPTHS
from arcforge_core.data.sources.needles import EVALUATION_SYLLABLES, draw_words
from arcforge_core.errors import DataError
from arcforge_core.eval.long_context.fitting import Filler, insert

NEEDLE = "\nThe code of {key} is {value}.\n"
ASK_CODE = "\nQuestion: what is the code of {key}?\nThe code of {key} is"
ASK_CODES = "\nQuestion: what are the codes of {key}?\nThe codes of {key} are"
LINK = "\nLet {key} be {value}.\n"
ASK_NAMES = "\nQuestion: which names have the value {value}?\nThe names with the value {value} are"
WORD_LIST = "Words: {words}\n"
ASK_WORDS = "Question: which {count} words are the most common?\nThe most common words are"
PASSAGE = "\nText {key}:\n{text}\n"
ASK_TEXT = '\nQuestion: which text has "{quote}"?\nThe words "{quote}" are in text'
TEMPLATES = (NEEDLE, ASK_CODE, ASK_CODES, LINK, ASK_NAMES, WORD_LIST, ASK_WORDS, PASSAGE, ASK_TEXT)

DISTRACTORS = 4
ASKED = 3
"""Values of one key, keys of one question, names of one chain, and words to be found."""
CHAINS = 2
ZIPF_EXPONENT = 2.0
WORDS_PER_REPEAT = 300
"""In a list of this many words an uncommon word occurs once, in a list of twice as many twice, and so on."""
COMMON_TIMES = 4
"""Ratio of the frequencies of common and uncommon words."""
PASSAGE_CHARACTERS = 240
QUOTE = re.compile(r'(?<!\S)[^\s"]+(?: [^\s"]+){2,4}(?!\S)')
"""Three to five words of one line."""


@dataclass(frozen=True)
class Setting:
    """The inputs from which a task is drawn.

    Attributes:
        name: name of the example, the seed of further random generators.
        draw: the example's generator.
        texts: the documents.
        taken: words of the documents, which must not be keys.
        depth: the requested depth, if any.
    """

    name: str
    draw: random.Random
    texts: Sequence[str]
    taken: frozenset[str]
    depth: float | None

    def words(self, count: int, size: int = 2) -> list[str]:
        """Returns distinct words that do not occur in the documents."""
        return draw_words(self.draw, EVALUATION_SYLLABLES, count, size, self.taken)

    def values(self, count: int) -> list[str]:
        """Returns distinct numbers of four digits."""
        return [str(n) for n in self.draw.sample(range(1000, 10000), count)]

    def depths(self, count: int) -> list[float]:
        """Returns `count` depths in ascending order."""
        return sorted(self.draw.sample(EVALUATION_DEPTHS, count))

    def one_depth(self) -> float:
        """Returns the requested depth, or draws one."""
        return self.draw.choice(EVALUATION_DEPTHS) if self.depth is None else self.depth


@dataclass(frozen=True)
class Plan:
    """An example before filler is added.

    Attributes:
        build: returns the prompt with n characters of filler, or with a list of n words.
        answers: the expected answers.
        least: the smallest n.
        depth: depth of the answer if it is at one place.
    """

    build: Callable[[int], str]
    answers: tuple[str, ...]
    least: int = 0
    depth: float | None = None


def single(setting: Setting) -> Plan:
    """One needle."""
    return _codes(setting, distractors=0)


def multi_key(setting: Setting) -> Plan:
    """One needle among needles of other keys."""
    return _codes(setting, distractors=DISTRACTORS)


def _codes(setting: Setting, distractors: int) -> Plan:
    depth = setting.one_depth()
    elsewhere = [d for d in EVALUATION_DEPTHS if abs(d - depth) > 0.05]
    depths = [depth, *setting.draw.sample(elsewhere, distractors)]
    keys, values = setting.words(1 + distractors), setting.values(1 + distractors)
    needles = [
        (place, NEEDLE.format(key=key, value=value)) for place, key, value in zip(depths, keys, values, strict=True)
    ]
    return _in_filler(setting, needles, ASK_CODE.format(key=keys[0]), values[:1], depth)


def multi_value(setting: Setting) -> Plan:
    """Several needles of one key; the question asks for all."""
    [key], values = setting.words(1), setting.values(ASKED)
    needles = [
        (depth, NEEDLE.format(key=key, value=value)) for depth, value in zip(setting.depths(ASKED), values, strict=True)
    ]
    return _in_filler(setting, needles, ASK_CODES.format(key=key), values)


def multi_query(setting: Setting) -> Plan:
    """Several needles of several keys; the question asks for all."""
    keys, values = setting.words(ASKED), setting.values(ASKED)
    needles = [
        (depth, NEEDLE.format(key=key, value=value))
        for depth, key, value in zip(setting.depths(ASKED), keys, values, strict=True)
    ]
    order = setting.draw.sample(range(ASKED), ASKED)
    asked = ", ".join(keys[n] for n in order)
    return _in_filler(setting, needles, ASK_CODES.format(key=asked), [values[n] for n in order])


def variable_tracking(setting: Setting) -> Plan:
    """Chains of names, the first of each with a value; the question asks for all names of one chain."""
    names, values = setting.words(CHAINS * ASKED), setting.values(CHAINS)
    chains = [names[n * ASKED : (n + 1) * ASKED] for n in range(CHAINS)]
    links = [
        [LINK.format(key=key, value=value) for key, value in zip(chain, [root, *chain], strict=False)]
        for chain, root in zip(chains, values, strict=True)
    ]
    turns = setting.draw.sample([n for n in range(CHAINS) for _ in range(ASKED)], CHAINS * ASKED)
    needles = [(depth, links[chain].pop(0)) for depth, chain in zip(setting.depths(len(turns)), turns, strict=True)]
    return _in_filler(setting, needles, ASK_NAMES.format(value=values[0]), chains[0])


def _in_filler(
    setting: Setting,
    needles: Sequence[tuple[float, str]],
    question: str,
    answers: Sequence[str],
    depth: float | None = None,
) -> Plan:
    filler = Filler(setting.texts, setting.draw)
    return Plan(lambda n: (insert(filler.take(n), needles) + question).lstrip("\n"), tuple(answers), 0, depth)


def common_words(setting: Setting) -> Plan:
    """A list in which a few words occur more often than all others."""
    common, pool = _list_words(setting)

    def build(n: int) -> str:
        repeat = -(-n // WORDS_PER_REPEAT)
        often = common * (COMMON_TIMES * repeat)
        rest = n - len(often)
        return _word_list(setting, often + (pool * repeat)[:rest])

    return Plan(build, tuple(common), 20)


def frequent_words(setting: Setting) -> Plan:
    """A list in which word frequencies follow Zipf's law, as in a language."""
    common, pool = _list_words(setting)

    def build(n: int) -> str:
        ranked = [*common, *pool]
        weights = [rank**-ZIPF_EXPONENT for rank in range(1, len(ranked) + 1)]
        words = [
            w for word, weight in zip(ranked, weights, strict=True) for w in [word] * int(n * weight / sum(weights))
        ]
        return _word_list(setting, words + pool[::-1][: n - len(words)])

    return Plan(build, tuple(common), 33)  # from 33 on, the third and the fourth word differ in frequency at every n


def _list_words(setting: Setting) -> tuple[list[str], list[str]]:
    """Returns the words to be found, the most common first, and the others."""
    words = draw_words(setting.draw, EVALUATION_SYLLABLES, ASKED + WORDS_PER_REPEAT)
    return words[:ASKED], words[ASKED:]


def _word_list(setting: Setting, words: Sequence[str]) -> str:
    shuffled = random.Random(f"{setting.name}/{len(words)}").sample(words, len(words))
    return WORD_LIST.format(words=" ".join(shuffled)) + ASK_WORDS.format(count=ASKED)


def qa(setting: Setting) -> Plan:
    """Passages of different documents under random titles; the question asks for the title of a quoted passage."""
    depth = setting.one_depth()
    passage, quote, others = _quotation(setting)
    [title] = setting.words(1, size=3)
    passages: list[str] = []

    def build(n: int) -> str:
        count = max(2, n // PASSAGE_CHARACTERS)
        for number in range(len(passages), count):
            passages.append(Filler(others, random.Random(f"{setting.name}/{number}")).take(2 * PASSAGE_CHARACTERS))
        draw = random.Random(f"{setting.name}/titles")
        titles = draw_words(draw, EVALUATION_SYLLABLES, count, 3, {*setting.taken, title})
        texts = passages[:count]
        asked = round(depth * (count - 1))
        titles[asked], texts[asked] = title, passage
        sizes = [n * (number + 1) // count - n * number // count for number in range(count)]
        parts = [PASSAGE.format(key=k, text=t[:size].strip()) for k, t, size in zip(titles, texts, sizes, strict=True)]
        return ("".join(parts) + ASK_TEXT.format(quote=quote)).lstrip("\n")

    return Plan(build, (title,), PASSAGE_CHARACTERS, depth)


def _quotation(setting: Setting) -> tuple[str, str, list[str]]:
    """Returns a passage, words from its beginning that occur nowhere else, and the remaining documents."""
    if len(setting.texts) < 2:
        raise DataError("long context: the task qa needs at least two documents")
    for _ in range(200):
        number = setting.draw.randrange(len(setting.texts))
        text = setting.texts[number]
        start = text.rfind("\n", 0, setting.draw.randrange(len(text))) + 1
        passage = text[start : start + 2 * PASSAGE_CHARACTERS].lstrip()
        found = QUOTE.findall(passage[: PASSAGE_CHARACTERS // 2])
        if found:
            quote = setting.draw.choice(found)
            if sum(other.count(quote) for other in setting.texts) == 1:
                others = [*setting.texts[:number], *setting.texts[number + 1 :]]
                more = Filler(others, setting.draw).take(2 * PASSAGE_CHARACTERS - len(passage))  # the text is short
                return passage + more, quote, others
    raise DataError("long context: the task qa needs words that occur only once, and the documents have none")


PLANS: dict[str, Callable[[Setting], Plan]] = {
    "single": single,
    "multi_key": multi_key,
    "multi_value": multi_value,
    "multi_query": multi_query,
    "variable_tracking": variable_tracking,
    "common_words": common_words,
    "frequent_words": frequent_words,
    "qa": qa,
}
