"""``environment=pathologies``: prompts that bring out repetition, mixed languages and broken formats."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_rl.objectives.base import Objective, ObjectiveTask, of, replies
from arcforge_rl.objectives.fluency import disfluency
from arcforge_rl.objectives.text import foreign_letters, repetition, unsound
from arcforge_rl.objectives.topics import TOPICS, Sentences, names_topic

FOREIGN = (
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430?",
    "\u4f60\u597d\uff0c\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002",
    "Guten Morgen, ich komme heute etwas sp\u00e4ter.",
    "Bonjour, le train a encore du retard.",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5, \u03c4\u03b9 \u03ba\u03ac\u03bd\u03b5\u03b9\u03c2;",
    "\u3053\u3093\u306b\u3061\u306f\u3001\u304a\u5143\u6c17\u3067\u3059\u304b\u3002",
)
FOREIGN_WORDS = frozenset(
    [
        "der",
        "die",
        "das",
        "und",
        "ich",
        "ist",
        "nicht",
        "ein",
        "eine",
        "le",
        "la",
        "les",
        "et",
        "je",
        "est",
        "une",
        "dans",
        "que",
        "el",
        "los",
        "muy",
        "pero",
    ]
)
Made = tuple[str, str]
"""The request, and a right reply."""


def counted(draw: random.Random, topic: str) -> Made:
    """A sequence that a model tends to continue for ever."""
    first, step, count = draw.randint(1, 50), draw.randint(1, 9), draw.randint(8, 20)
    numbers = ", ".join(str(first + step * n) for n in range(count))
    return (
        f"Starting at {first}, count in steps of {step}. Write {count} numbers, separated by commas, and stop.",
        numbers,
    )


def repeated(draw: random.Random, topic: str) -> Made:
    """A word a number of times, and no more."""
    count = draw.randint(3, 12)
    return f"Write the word {topic} {count} times in one line, separated by blanks, and stop.", " ".join(
        [topic] * count
    )


def mixed(draw: random.Random, topic: str) -> Made:
    """An English request about a foreign text."""
    count = draw.randint(2, 3)
    text = " ".join(Sentences(topic, random.Random(f"{topic}/{count}")).take(count))
    return (
        f"A friend wrote to me: {draw.choice(FOREIGN)!r} I only read English. Write me {count} English sentences about "
        f"{topic}, and nothing else.",
        text,
    )


def nested(draw: random.Random, topic: str) -> Made:
    """JSON inside JSON, with quotation marks."""
    number = draw.randint(10, 99)
    value = {
        "topic": topic,
        "note": f'say "{topic}"',
        "sizes": [number, number + 1],
        "more": {"draft": draw.random() < 0.5},
    }
    listed = (
        f'topic: {topic}; note: the text say "{topic}" with its quotation marks; sizes: the list of {number} and '
        f"{number + 1}; more: an object with draft: {str(value['more']['draft']).lower()}"  # type: ignore[index]
    )
    return f"Write this as one JSON object and nothing else. {listed}.", json.dumps(value)


def table(draw: random.Random, topic: str) -> Made:
    """Comma-separated values with commas inside."""
    names = draw.sample(TOPICS, 3)
    rows = [["name", "price", "remark"], *([name, str(draw.randint(1, 90)), f"small, {name[:3]}"] for name in names)]
    listed = "; ".join(" | ".join(row) for row in rows)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    prompt = f"Write this table as CSV with a header, and quote where it is needed, without a fence. Rows: {listed}"
    return prompt, buffer.getvalue().strip()


def closed(draw: random.Random, topic: str) -> Made:
    """A fenced block that must be closed."""
    count = draw.randint(2, 4)
    items = draw.sample(TOPICS, count)
    prompt = f"Write one fenced block (three backticks) with these lines and nothing else: {', '.join(items)}."
    return prompt, "```\n" + "\n".join(items) + "\n```"


KINDS: Mapping[str, Callable[[random.Random, str], Made]] = {
    "counting": counted, "repeating": repeated, "languages": mixed, "json": nested, "csv": table, "fence": closed,
}  # fmt: skip
CATEGORY = {"counting": "repetition", "repeating": "repetition", "languages": "mixed languages"}
"""Pathology by kind; the others are broken formats."""


@dataclass(frozen=True)
class PathologyTask(ObjectiveTask):
    """A prompt.

    Attributes:
        topic: of the text.
        count: sentences of a text in the wrong language's company; 0 elsewhere.
    """

    topic: str
    count: int


class Pathologies(Objective):
    """1 for a reply that is exactly what was asked for, ends where it should, in one language and a sound format."""

    domain = "pathologies"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a prompt of a random kind."""
        kind, topic = draw.choice(self.config.kinds), draw.choice(TOPICS)
        prompt, answer = KINDS[kind](draw, topic)
        count = answer.count(".") if kind == "languages" else 0
        category = CATEGORY.get(kind, "broken format")
        key = f"{kind}/{prompt}"
        return key, PathologyTask(key, prompt, answer, self.domain, category, (kind,), topic, count)

    @reward(timeout=None)
    def sound(self, task: Task, episode: Episode) -> Score:
        """Judges the reply by its kind; needs no timeout."""
        known, reply = of(task, PathologyTask), episode.reply
        if reply.finish_reason != "stop":
            return Score(0.0, f"the reply was cut off ({reply.finish_reason})")
        kind, text = known.kinds[0], reply.text.strip()
        if kind == "languages":
            flaw = unsound(reply, known.prompt) or foreign(text) or disfluency(text, known.count)
            flaw = flaw or ("" if names_topic(text, known.topic) else f"it is not about {known.topic}")
            return Score(float(not flaw), flaw or "English alone")
        read = {"json": parsed_json, "csv": parsed_csv}.get(kind, str.strip)
        return Score(float(read(text) == read(known.answer)), f"said {text[:60]!r}")

    @metric(timeout=None)
    def repeated(self, task: Task, episode: Episode) -> Score:
        """Returns the share of four-word phrases that occurred before."""
        return Score(repetition(episode.reply.text[: self.longest]), "share of repeated phrases")

    @metric(timeout=None)
    def mixed(self, task: Task, episode: Episode) -> Score:
        """Returns whether the reply has another script or several foreign words."""
        flaw = foreign(episode.reply.text[: self.longest])
        return Score(float(bool(flaw)), flaw or "one language")

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns replies that go too far, stop too early, explain themselves, or mix."""
        known = of(task, PathologyTask)
        texts = [
            f"{known.answer}, {known.answer}",
            f"{known.answer} {known.topic} {known.topic} and so on, and so on",
            known.answer[: len(known.answer) // 2],
            f"Sure! Here you are:\n{known.answer}\nAnything else?",
            f"{known.answer}\n{FOREIGN[0]}",
        ]
        return [*replies(*texts), [Reply(known.answer, finish_reason="length")]]


def foreign(text: str) -> str:
    """Returns the foreign part of a text: letters of another script, or two foreign function words; else empty."""
    if strange := foreign_letters(text):
        return f"letters of another script: {''.join(strange[:10])}"
    found = [word for word in text.lower().split() if word.strip(".,;:!?") in FOREIGN_WORDS]
    return f"foreign words: {' '.join(found[:5])}" if len(found) >= 2 else ""


def parsed_json(text: str) -> object:
    """Returns the value of a JSON text, as canonical text; None for any other text."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def parsed_csv(text: str) -> object:
    """Returns the rows of a CSV text, with every field as it is between commas and quotation marks."""
    try:
        return list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error:
        return None
