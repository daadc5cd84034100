"""Mathematics by two agents: a solver answers, a reviewer judges the answer, and the solver answers again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric
from arcforge_rl.environments.math import Math
from arcforge_rl.environments.math_judge import math_cheats

VERDICT = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
REVIEW = "review"
"""Artefact with the reviewer's text; absent if there was no answer to review."""


class ReviewedMath(Math):
    """The problems of ``environment=math``. The solver's second answer counts; the reviewer's verdict has a reward of
    its own, by which a trained reviewer (``+agents.reviewer={engine: policy, trained: true}``) learns."""

    agents = ("reviewer",)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Asks the solver, the reviewer, and the solver again; ends at a reply that was cut off."""
        question = Message("user", task.prompt)
        first = await agents.solver.reply([question])
        if first.finish_reason != "stop":
            return Episode((question, first.message), first, first.finish_reason)
        asked = f"{task.prompt}\n\nAnswer: {first.text}\n\nIs this answer right? Say yes or no."
        review = await agents.reviewer.reply([Message("user", asked)])
        said = Message("user", f"A reviewer says: {review.text}\nAnswer again.")
        last = await agents.solver.reply([question, first.message, said])
        return Episode((question, first.message, said, last.message), last, last.finish_reason, {REVIEW: review.text})

    @metric(timeout=None)
    async def reward_reviewer(self, task: Task, episode: Episode) -> Score:
        """Returns whether the reviewer's first yes or no is right."""
        verdict = VERDICT.search(str(episode.artefacts.get(REVIEW, "")))
        if verdict is None:
            return Score(0.0, "there is no verdict")
        reply = Reply(episode.messages[1].content)
        right = (await self.judge_math(task, replace(episode, reply=reply))).value == 1.0
        return Score(float(right == (verdict[0].lower() == "yes")), f"the verdict is {verdict[0]}")

    def oracle(self, task: Task) -> Script:
        """Returns the answer twice."""
        return [*super().oracle(task), *super().oracle(task)]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns those of mathematics, as second answers after a right one."""
        (right,) = super().oracle(task)
        return [[right, *cheat] for cheat in math_cheats(task)]
