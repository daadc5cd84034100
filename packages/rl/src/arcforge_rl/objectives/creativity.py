"""``environment=creativity``: several ideas that differ, are new, and still make sense.

New: few of its phrases are in the corpus, which is the reference pages of Python, our own oracles' sentences, and stock
phrases. Distinct: few phrases are shared between the ideas. Neither can be bought by incoherence: every idea must be a
sound English sentence about the topic.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Outcome, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_rl.objectives.base import Objective, ObjectiveTask, of, replies
from arcforge_rl.objectives.fluency import disfluency
from arcforge_rl.objectives.text import lines, ngrams, unsound, words
from arcforge_rl.objectives.topics import OPENINGS, REMARKS, TOPICS, names_topic

STOCK = (
    "in a world where", "a tapestry of", "let us delve into", "a testament to", "once upon a time", "in the heart of",
    "it is important to note", "at the end of the day", "the ever evolving", "little did they know",
    "dance of light and shadow", "unlock the secrets of", "a symphony of", "nestled in the",
)  # fmt: skip
"""Phrases that models write without being asked."""
FORMS = {
    "first_line": "first lines of stories about {topic}",
    "slogan": "slogans for {topic}, each a whole sentence",
    "comparison": "comparisons for {topic}, each a whole sentence",
    "use": "unusual uses of {topic}, each a whole sentence",
}
WHO = ("The blind baker", "My oldest rival", "A retired pirate", "The quiet twin", "Our tallest nurse", "A lost robot")
DID = ("traded", "hid", "painted", "weighed", "forgave", "borrowed", "counted", "buried", "sang to", "measured")
WHAT = (
    "before the storm",
    "with a wooden spoon",
    "for eleven coins",
    "under a green moon",
    "without any shoes",
    "in a dream",
)
WHY = (
    "to win a bet",
    "because nobody looked",
    "and told no one",
    "until the ink dried",
    "as a slow joke",
    "for the cat",
)


@dataclass(frozen=True)
class CreativeTask(ObjectiveTask):
    """A request for ideas.

    Attributes:
        topic: of each.
        count: how many.
    """

    topic: str
    count: int


class Creativity(Objective):
    """1 if all ideas are sound, distinct and new, by the bounds of `CreativityConfig`; topics are split.

    With `against_group` the reward is multiplied by the share of an episode's phrases that no other rollout of its task
    has; it then compares.
    """

    domain = "creativity"

    def __init__(self, config: object) -> None:
        super().__init__(config)
        self.compares = self.config.against_group

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a request of a random form."""
        form, topic, count = draw.choice(list(FORMS)), draw.choice(TOPICS), draw.randint(2, 4)
        prompt = f"Write {count} {FORMS[form].format(topic=topic)}, one on each line. Make them new and different."
        answering = random.Random(prompt)
        who, did, what, why = (answering.sample(parts, count) for parts in (WHO, DID, WHAT, WHY))
        ideas = [f"{who[n]} {did[n]} the {topic} {what[n]} {why[n]}." for n in range(count)]
        return topic, CreativeTask(
            f"{form}/{prompt}", prompt, "\n".join(ideas), self.domain, form, (form,), topic, count
        )

    @reward(timeout=None)
    def creative(self, task: Task, episode: Episode) -> Score:
        """Judges the ideas; needs no timeout."""
        known = of(task, CreativeTask)
        if flaw := incoherence(episode.reply, known):
            return Score(0.0, flaw)
        ideas = lines(episode.reply.text)
        if (share := distinctness(ideas)) < self.config.least_distinct:
            return Score(0.0, f"only {share:.0%} of the phrases are in one idea alone")
        if (share := novelty(episode.reply.text)) < self.config.least_new:
            return Score(0.0, f"only {share:.0%} of the phrases are new")
        return Score(1.0, "sound, distinct and new")

    @metric(timeout=None)
    def distinct(self, task: Task, episode: Episode) -> Score:
        """Returns the share of phrases that one idea alone has."""
        return Score(distinctness(lines(episode.reply.text[: self.longest])), "share of distinct phrases")

    @metric(timeout=None)
    def new(self, task: Task, episode: Episode) -> Score:
        """Returns the share of phrases that the corpus does not have."""
        return Score(novelty(episode.reply.text[: self.longest]), "share of new phrases")

    async def score_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Outcome]:
        """Returns the outcomes; with `against_group`, each multiplied by what the others do not have."""
        outcomes = await super().score_group(task, episodes)
        if not self.compares:
            return outcomes
        phrases = [set(ngrams(words(episode.reply.text), 3)) for episode in episodes]
        found = []
        for number, outcome in enumerate(outcomes):
            others: set[tuple[str, ...]] = set().union(*phrases[:number], *phrases[number + 1 :])
            share = len(phrases[number] - others) / max(1, len(phrases[number])) if outcome.failure is None else 0.0
            found.append(outcome if outcome.failure else apart(outcome, share))
        return found

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns one idea several times, stock phrases, sentences of the corpus, words at random, and too few."""
        known = of(task, CreativeTask)
        first = known.answer.splitlines()[0]
        shuffled = random.Random(known.key)
        salad = [
            " ".join(shuffled.sample(["xylem", known.topic, "quartz", "gnarl", "vex", "plinth", "wharf"], 7)) + "."
            for _ in range(known.count)
        ]
        texts = [
            "\n".join([first] * known.count),
            "\n".join(f"{phrase.capitalize()} {known.topic} are the best." for phrase in STOCK[: known.count]),
            "\n".join(OPENINGS[n].format(topic=known.topic) + "." for n in range(known.count)),
            "\n".join(salad),
            first,
            known.answer.replace(known.topic, "things"),
            "\n".join(f"{REMARKS[n]} with {known.topic}." for n in range(known.count)),
        ]
        return [*replies(*texts), [Reply(known.answer, finish_reason="length")]]


def incoherence(reply: Reply, task: CreativeTask) -> str:
    """Returns why the ideas of a reply are not the asked number of sound sentences about the topic; else empty."""
    if flaw := unsound(reply, task.prompt):
        return flaw
    ideas = lines(reply.text)
    if len(ideas) != task.count:
        return f"there are {len(ideas)} lines, not {task.count}"
    for idea in ideas:
        if flaw := disfluency(idea, 1):
            return flaw
        if not names_topic(idea, task.topic):
            return f"not about {task.topic}: {idea[:60]!r}"
    return ""


def distinctness(ideas: Sequence[str]) -> float:
    """Returns the share of two-word phrases that one idea alone has; 0 for no phrase."""
    by_idea = [set(ngrams(words(idea), 2)) for idea in ideas]
    count = Counter(gram for grams in by_idea for gram in grams)
    return sum(number == 1 for number in count.values()) / count.total() if count else 0.0


def novelty(text: str) -> float:
    """Returns the share of three-word phrases that the corpus does not have; 0 for no phrase."""
    grams = ngrams(words(text), 3)
    return sum(gram not in corpus() for gram in grams) / len(grams) if grams else 0.0


@functools.cache
def corpus() -> frozenset[tuple[str, ...]]:
    """Returns the three-word phrases of what has been written before."""
    from pydoc_data.topics import topics  # 700 kB, which only verifiers need

    texts = [*map(str, topics.values()), *STOCK, *REMARKS]
    texts += [opening.format(topic=topic) for opening in OPENINGS for topic in TOPICS]
    return frozenset(gram for text in texts for gram in ngrams(words(text), 3))


def apart(outcome: Outcome, share: float) -> Outcome:
    """Returns an outcome whose reward is multiplied by the share of phrases that no other rollout has."""
    reason = f"{outcome.reasons['reward']}; {share:.0%} of the phrases are in no other rollout"
    rewards = {**outcome.rewards, "reward": outcome.reward * share}
    return Outcome(rewards, {**outcome.reasons, "reward": reason}, raw={**outcome.raw, "reward": outcome.reward})
