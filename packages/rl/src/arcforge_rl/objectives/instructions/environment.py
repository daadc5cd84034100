"""``environment=instructions``: requests about a topic with several constraints, judged by programs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.errors import ArcforgeError
from arcforge_rl.configs.objectives import InstructionsConfig
from arcforge_rl.objectives.base import Objective, ObjectiveTask, of, replies
from arcforge_rl.objectives.instructions.compose import KINDS, draw_constraints, fits, holds, loosely, said, write
from arcforge_rl.objectives.instructions.kind import Constraint
from arcforge_rl.objectives.text import unsound
from arcforge_rl.objectives.topics import TOPICS, names_topic

CATEGORIES = {
    "description": "Describe {topic}.",
    "explanation": "Explain {topic} to a child.",
    "advertisement": "Write an advertisement for {topic}.",
    "story": "Write a very short story about {topic}.",
    "letter": "Write to a friend about {topic}.",
    "advice": "Give a beginner some advice about {topic}.",
    "speech": "Write the beginning of a speech about {topic}.",
}
"""Requests by category."""
ATTEMPTS = 50


@dataclass(frozen=True)
class InstructionTask(ObjectiveTask):
    """A request.

    Attributes:
        topic: subject of the reply.
        constraints: all must be satisfied.
    """

    topic: str
    constraints: tuple[Constraint, ...]


class Instructions(Objective):
    """The reward is 1 for a sound reply about the topic that satisfies every constraint.

    Tasks with a kind of `InstructionsConfig.heldout_kinds` are held out, in the domain ``instructions_unseen``; topics
    are split, too.
    """

    domain = "instructions"

    def __init__(self, config: InstructionsConfig) -> None:
        super().__init__(config)
        held = set(config.heldout_kinds)
        self._seen, self._unseen = [n for n in KINDS if n not in held], [n for n in KINDS if n in held]

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a request whose constraints a text is known to satisfy; half of those held out have unseen kinds."""
        topic, category = draw.choice(TOPICS), draw.choice(list(CATEGORIES))
        unseen = bool(self._unseen) and self.config.split == "heldout" and draw.random() < 0.5
        names = self._unseen if unseen else self._seen
        for _ in range(ATTEMPTS):
            count = draw.randint(self.config.fewest, self.config.most)
            constraints = draw_constraints(draw, topic, names, count)
            prompt = " ".join([CATEGORIES[category].format(topic=topic), *map(said, constraints)])
            answer = write(constraints, topic, random.Random(prompt))
            if fits(constraints, topic, prompt, answer):
                break
        else:
            raise ArcforgeError(f"no reply about {topic} satisfies constraints of {', '.join(names)}")
        kinds = tuple(one.kind for one in constraints)
        skill = f"{self.domain}_unseen" if unseen else self.domain
        task = InstructionTask(f"{skill}/{prompt}", prompt, answer, skill, category, kinds, topic, tuple(constraints))
        return f"instructions/{topic}", task

    @reward(timeout=None)
    def strict(self, task: Task, episode: Episode) -> Score:
        """Checks all constraints of the reply as it is."""
        known, reply = of(task, InstructionTask), episode.reply
        if flaw := flaw_of(reply, known):
            return Score(0.0, flaw)
        failed = [said(one) for one in known.constraints if not holds(one, reply.text)]
        return Score(float(not failed), f"not satisfied: {' '.join(failed)}" if failed else "all are satisfied")

    @metric(timeout=None)
    def loose(self, task: Task, episode: Episode) -> Score:
        """Checks all constraints, each without the first or the last line or asterisks where this helps."""
        known = of(task, InstructionTask)
        text = episode.reply.text[: self.longest]
        sound = not flaw_of(episode.reply, known)
        return Score(float(sound and all(loosely(one, text) for one in known.constraints)), "checked loosely")

    @metric(timeout=None)
    def satisfied(self, task: Task, episode: Episode) -> Score:
        """Returns the share of satisfied constraints of a sound reply, for a smoother reward."""
        known = of(task, InstructionTask)
        if flaw := flaw_of(episode.reply, known):
            return Score(0.0, flaw)
        right = sum(holds(one, episode.reply.text) for one in known.constraints)
        return Score(right / len(known.constraints), f"{right} of {len(known.constraints)}")

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns replies about something else, of the prompt's words, claims and cut-off ones."""
        known = of(task, InstructionTask)
        texts = [
            f"I have written about {known.topic} and followed every constraint.\nconstraints: satisfied",
            known.topic,
            f"{known.topic} " * 40,
            " ".join(map(said, known.constraints)),
            known.answer + "\u200b",
            known.answer.replace("e", "\u0435").replace("E", "\u0415"),
            f"{known.prompt}\n{known.prompt}",
        ]
        wrong = [text for text in texts if not fits(known.constraints, known.topic, known.prompt, text)]
        return [*replies(*wrong), [Reply(known.answer, finish_reason="length")]]


def flaw_of(reply: Reply, task: InstructionTask) -> str:
    """Returns why a reply cannot count, whatever its constraints are; empty if it can."""
    flaw = unsound(reply, task.prompt)
    return flaw or ("" if names_topic(reply.text, task.topic) else f"it is not about {task.topic}")
