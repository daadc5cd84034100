"""``environment=fluency``: English as such: words in their order, agreement, and short texts without any flaw."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_rl.objectives.base import Objective, ObjectiveTask, of, replies
from arcforge_rl.objectives.text import FUNCTION_WORDS, function_words, repetition, sentences, unsound, words
from arcforge_rl.objectives.topics import OPENINGS, REMARKS, TOPICS, Sentences, names_topic

PLURALS = (
    ("The two {topic} near the door {verb} in good order.", "are", "is"),
    ("These {topic} {verb} never been seen before.", "have", "has"),
    ("Most {topic} {verb} care and a dry place.", "need", "needs"),
    ("All the {topic} we saw {verb} white at that time.", "were", "was"),
    ("Nobody who knows {topic} {verb} to sell them.", "wants", "want"),
    ("Each of the {topic} {verb} a number on the back.", "has", "have"),
    ("The owner of the {topic} {verb} every spring.", "returns", "return"),
    ("My brothers and I {verb} the {topic} ourselves.", "clean", "cleans"),
)
"""Sentences with a right and a wrong verb."""
COUNTED = tuple(topic for topic in TOPICS if topic.endswith("s") and topic != "glass")
"""Topics in the plural."""


@dataclass(frozen=True)
class FluencyTask(ObjectiveTask):
    """A task.

    Attributes:
        topic: subject of a text.
        count: sentences of a text; 0 where one sentence is right.
    """

    topic: str
    count: int


class Fluency(Objective):
    """1 for exactly the right sentence, or for a text that is fluent by every measure.

    A fluent text has the number of sentences that was asked for, each with a capital, an end and four words or more, an
    ordinary share of function words, and no repetition. Topics are split.
    """

    domain = "fluency"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task of a random kind."""
        kind, topic = draw.choice(self.config.kinds), draw.choice(TOPICS)
        count = 0
        if kind == "order":
            answer = draw.choice(OPENINGS).format(topic=topic) + "."
            parts = answer[:1].lower() + answer[1:-1]
            prompt = (
                "Put these words in order: " + " ".join(sorted(parts.split())) + "\nAnswer with the sentence alone."
            )
        elif kind == "agreement":
            pattern, right, wrong = draw.choice(PLURALS)
            topic = draw.choice(COUNTED)
            answer, flawed = (pattern.format(topic=topic, verb=verb) for verb in (right, wrong))
            prompt = f"Correct this sentence and answer with it alone: {flawed}"
        else:
            count = draw.randint(2, 4)
            prompt = f"Write {count} fluent English sentences about {topic}, and nothing else."
            answer = " ".join(Sentences(topic, random.Random(prompt)).take(count))
        return topic, FluencyTask(f"{kind}/{prompt}", prompt, answer, self.domain, kind, (kind,), topic, count)

    @reward(timeout=None)
    def fluent(self, task: Task, episode: Episode) -> Score:
        """Compares the sentence, or measures the text; needs no timeout."""
        known, reply = of(task, FluencyTask), episode.reply
        if known.count:
            flaw = unsound(reply, known.prompt) or disfluency(reply.text, known.count)
            flaw = flaw or ("" if names_topic(reply.text, known.topic) else f"it is not about {known.topic}")
            return Score(float(not flaw), flaw or "fluent")
        if reply.finish_reason != "stop":
            return Score(0.0, f"the reply was cut off ({reply.finish_reason})")
        return Score(float(reply.text.strip() == known.answer), f"the sentence is {reply.text.strip()[:80]!r}")

    @metric(timeout=None)
    def repeated(self, task: Task, episode: Episode) -> Score:
        """Returns the share of four-word phrases that occurred before."""
        return Score(repetition(episode.reply.text[: self.longest]), "share of repeated phrases")

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the sentence with other words, words without a sentence, and one sentence again and again."""
        known = of(task, FluencyTask)
        texts = [
            f"{known.answer} {known.answer}",
            known.answer.rstrip(".") + " and and and.",
            " ".join(sorted(words(known.answer))),
            known.answer.lower(),
            " ".join([REMARKS[0] + "."] * max(known.count, 2)),
            f"{known.topic.capitalize()}. " * max(known.count, 2),
            f"Here it is: {known.answer}\nHope that helps",
        ]
        return [*replies(*texts), [Reply(known.answer, finish_reason="length")]]


def disfluency(text: str, count: int) -> str:
    """Returns why a text of `count` sentences is not fluent, or an empty text."""
    found = sentences(text)
    if len(found) != count:
        return f"there are {len(found)} sentences, not {count}"
    for one in found:
        if not re.match(r"[\"'\u201c(]?[A-Z]", one) or one.rstrip("\"'\u201d)")[-1:] not in ".!?":
            return f"no sentence: {one[:60]!r}"
        if len(words(one)) < 4:
            return f"too short: {one[:60]!r}"
        said = words(one)
        if doubled := [a for a, b in itertools.pairwise(said) if a == b and a not in ("had", "that")]:
            return f"{doubled[0]} is said twice in a row: {one[:60]!r}"
        if not FUNCTION_WORDS & set(said):
            return f"words without a sentence: {one[:60]!r}"
    if len({one.lower() for one in found}) < count:
        return "a sentence is repeated"
    if not 0.1 <= (share := function_words(text)) <= 0.75:
        return f"{share:.0%} of the words are function words"
    return ""
