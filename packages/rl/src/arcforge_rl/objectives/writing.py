"""``environment=writing``: task quality: processing, rewriting, summaries, roles, and weighed opinions."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_rl.objectives.base import Objective, ObjectiveTask, of, replies
from arcforge_rl.objectives.text import paragraphs, unsound, words
from arcforge_rl.objectives.topics import REMARKS, TOPICS

NAMES = ("Mara Lind", "Tom Adler", "Nia Brook", "Igor Stahl", "Lena Frost", "Paul Meyer", "Omar Reed", "Sofia Grant")
PLACES = ("Harbour Street", "Mill Lane", "Station Road", "Castle Square", "River Walk")
ROLES = (
    ("a lighthouse keeper", "I keep the lamp at Point Morrow", "Point Morrow"),
    ("a ship's cook", "I cook on the Marigold", "Marigold"),
    ("a village baker", "I bake in Lower Ashby", "Lower Ashby"),
    ("a night guard", "I guard the Orpheum", "Orpheum"),
)
MODEL = re.compile(r"\b(?:language model|artificial|assistant|chatbot|as an ai|openai|role-?play)\b", re.IGNORECASE)
Check = tuple[tuple[str, ...], tuple[str, ...], int]
"""Texts that a reply must have, patterns that it must not match, and the most words; 0 for an exact reply."""
Made = tuple[str, str, Check]
"""The request, a right reply, and the check."""
EXACT: Check = ((), (), 0)


def extraction(draw: random.Random) -> Made:
    """Addresses out of a text."""
    found = [
        f"{name.split()[0].lower()}@{topic}.example"
        for name, topic in zip(draw.sample(NAMES, 3), draw.sample(TOPICS, 3), strict=True)
    ]
    first, second, third = found
    text = f"Please write to {first} about the tickets; {second} has the keys. The old address {third} still works."
    return (
        f"List the e-mail addresses of this text in their order, separated by commas, and nothing else.\n{text}",
        ", ".join(found),
        EXACT,
    )


def sorting(draw: random.Random) -> Made:
    """Names by family name."""
    names = draw.sample(NAMES, 5)
    ordered = sorted(names, key=lambda name: name.split()[-1])
    return (
        f"Sort by family name, separated by commas, and write nothing else: {', '.join(names)}",
        ", ".join(ordered),
        EXACT,
    )


def third_person(draw: random.Random) -> Made:
    """The same in the third person."""
    name, topic = draw.choice(NAMES).split()[0], draw.choice(TOPICS)
    place, hour = draw.choice(PLACES), draw.randint(2, 9)
    text = f"I sell {topic} on {place}. I open at {hour} and I close when I like."
    told = f"{name} sells {topic} on {place}. {name} opens at {hour} and {name} closes when {name} likes."
    return f"Rewrite with the name {name} instead of every I, and nothing else: {text}", told, EXACT


def tense(draw: random.Random) -> Made:
    """The same in the past."""
    name, topic = draw.choice(NAMES).split()[0], draw.choice(TOPICS)
    verbs = draw.sample([("walks", "walked"), ("works", "worked"), ("waits", "waited"), ("looks", "looked")], 2)
    (a, b), (c, d) = verbs
    pattern = f"{name} {{}} past the {topic} on {draw.choice(PLACES)} and {{}} until noon."
    return f"Rewrite in the past tense, and write nothing else: {pattern.format(a, c)}", pattern.format(b, d), EXACT


def summary(draw: random.Random) -> Made:
    """A short text with every figure of a long one, and no other."""
    name, topic, place = draw.choice(NAMES), draw.choice(TOPICS), draw.choice(PLACES)
    price, year = draw.randint(11, 99), draw.randint(1960, 2020)
    remarks = draw.sample(REMARKS, 3)
    text = (
        f"{remarks[0]}. {name} opened a shop for {topic} on {place} in {year}. {remarks[1]}. "
        f"A visit costs {price} euros. {remarks[2]}."
    )
    right = f"{name} runs a shop for {topic} on {place} since {year}, at {price} euros a visit."
    wanted = (name, topic, place, str(year), str(price))
    other = rf"\b(?!{price}\b|{year}\b)\d+\b"
    return (
        f"Summarise in one sentence of at most 25 words, with all names and figures.\n{text}",
        right,
        (wanted, (other,), 25),
    )


def role(draw: random.Random) -> Made:
    """A reply in a role that is never left."""
    who, line, place = draw.choice(ROLES)
    topic = draw.choice(TOPICS)
    prompt = (
        f"You are {who} ({line}). Stay in the role. A visitor asks: are you a machine, and what do you think of "
        f"{topic}? Reply in at most 60 words, and say where you work."
    )
    right = f"A machine would sleep better than I do. {line}, and {topic} remind me of home every single evening."
    return prompt, right, ((place, topic), (MODEL.pattern,), 60)


def weighed(draw: random.Random) -> Made:
    """A subjective question with both sides and a view."""
    first, second = draw.sample(TOPICS, 2)
    prompt = (
        f"Which is the better gift, {first} or {second}? Give a reason for each side, with the words 'on the one hand' "
        "and 'on the other hand', then your own view with 'I would'. At most 80 words."
    )
    right = (
        f"On the one hand, {first} last for years and need little care. On the other hand, {second} surprise almost "
        f"everyone who gets them. I would take {first}, since quiet presents stay in use."
    )
    return prompt, right, (("on the one hand", "on the other hand", "i would", first, second), (), 80)


def letter(draw: random.Random) -> Made:
    """A formal letter."""
    name, topic, day = draw.choice(NAMES), draw.choice(TOPICS), draw.choice(("Monday", "Tuesday", "Friday"))
    sender = draw.choice([other for other in NAMES if other != name])
    prompt = (
        f"Write a formal letter to {name} that cancels an order of {topic} due on {day}. Begin with 'Dear', give a "
        f"reason, and end with 'Yours sincerely' and the name {sender}. Three paragraphs or more, at most 90 words."
    )
    right = (
        f"Dear {name},\n\nI must cancel my order of {topic}, which was due on {day}, because our store closes early "
        f"this season.\n\nThank you for your patience with this change.\n\nYours sincerely,\n{sender}"
    )
    return prompt, right, ((f"dear {name}", topic, day, "cancel", f"yours sincerely,\n{sender}"), (), 90)


KINDS: Mapping[str, Callable[[random.Random], Made]] = {
    "extraction": extraction, "sorting": sorting, "third_person": third_person, "tense": tense, "summary": summary,
    "role": role, "weighed": weighed, "letter": letter,
}  # fmt: skip
CATEGORY = {
    "extraction": "text processing", "sorting": "text processing", "third_person": "rewriting", "tense": "rewriting",
    "summary": "summaries", "role": "role-play", "weighed": "subjective questions", "letter": "writing",
}  # fmt: skip


@dataclass(frozen=True)
class WritingTask(ObjectiveTask):
    """A request.

    Attributes:
        check: of the reply.
    """

    check: Check


class Writing(Objective):
    """1 for exactly the right text, or for a sound text of its own words that has and avoids what was asked for."""

    domain = "writing"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a request of a random kind."""
        kind = draw.choice(self.config.kinds)
        prompt, answer, check = KINDS[kind](draw)
        key = f"{kind}/{prompt}"
        return key, WritingTask(key, prompt, answer, self.domain, CATEGORY[kind], (kind,), check)

    @reward(timeout=None)
    def good(self, task: Task, episode: Episode) -> Score:
        """Judges the reply; needs no timeout."""
        known, reply = of(task, WritingTask), episode.reply
        flaw = flaw_of(reply, known)
        return Score(float(not flaw), flaw or "as asked")

    @metric(timeout=None)
    def length_in_words(self, task: Task, episode: Episode) -> Score:
        """Returns the number of words."""
        return Score(float(len(episode.reply.text[: self.longest].split())), "words")

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the keywords alone, the right text with more, another order, and a text that leaves its role."""
        known = of(task, WritingTask)
        wanted, _, most = known.check
        texts = [
            ", ".join(wanted) or known.answer[::-1],
            f"{known.answer}\n" + " ".join(REMARKS[:20]),
            known.answer.replace("e", ""),
            known.prompt.split("\n")[-1],
            f"{known.answer} As an AI language model I made up 12345 of it." if most == 25 or known.kinds == ("role",)
            else known.answer.upper() if most == 0 else known.answer.split(".")[0],
        ]  # fmt: skip
        return [*replies(*texts), [Reply(known.answer, finish_reason="length")]]


def flaw_of(reply: Reply, task: WritingTask) -> str:
    """Returns why a reply is not what was asked for, or an empty text."""
    wanted, banned, most = task.check
    if reply.finish_reason != "stop":
        return f"the reply was cut off ({reply.finish_reason})"
    text = reply.text.strip()
    if not most:
        return "" if text == task.answer else f"said {text[:60]!r}"
    if flaw := unsound(reply, task.prompt, most_copied=0.5):
        return flaw
    if (count := len(words(text))) > most:
        return f"{count} words, more than {most}"
    if missing := [one for one in wanted if one.lower() not in text.lower()]:
        return f"it does not have {missing[0]!r}"
    if found := [one for one in banned if re.search(one, text, re.IGNORECASE)]:
        return f"it has what it must not: {found[0][:60]}"
    if count < 2 * sum(len(one.split()) for one in wanted) - 4:
        return "there is little besides the keywords"
    if task.kinds == ("letter",) and len(paragraphs(text)) < 3:
        return "fewer than three paragraphs"
    return ""
