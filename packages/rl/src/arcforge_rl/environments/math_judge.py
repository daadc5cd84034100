"""The verifier of mathematical answers, shared by environments."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import EnvironmentBase
from arcforge_core.episodes.rewards import reward
from arcforge_rl.environments.answers import NoAnswer, equivalent, final_answer, judge_number, rational

SECONDS = 2.0
"""Seconds for math-verify, once it is imported."""


class MathVerified(EnvironmentBase):
    """Compares answers as numbers if the reference is one, otherwise with math-verify in a killable process."""

    domain = "math"

    @reward(timeout=None)
    async def correct(self, task: Task, episode: Episode) -> Score:
        """Returns whether the final answer (see `answers`) equals the reference."""
        return await self.judge_math(task, episode)

    async def judge_math(self, task: Task, episode: Episode) -> Score:
        """Compares numbers in this process, everything else in a killable one."""
        number = rational(task.answer)
        if number is not None:
            return judge_number(number, episode.reply)
        try:
            final_answer(episode.reply)
        except NoAnswer as reason:
            return Score(0.0, str(reason))
        return await self.elsewhere("equal", task, episode, SECONDS)

    def warm_up(self) -> None:
        """Imports math-verify if it is installed; without it only numbers can be compared."""
        if importlib.util.find_spec("math_verify"):
            equivalent("x", "x")

    def equal(self, task: Task, episode: Episode) -> Score:
        """Compares a reply's answer with math-verify."""
        answer = final_answer(episode.reply)
        try:
            return Score(float(equivalent(task.answer, answer)), f"the answer is {answer[:80]!r}")
        except NoAnswer as reason:
            return Score(0.0, str(reason))


def math_cheats(task: Task) -> Sequence[Script]:
    """Returns answers among others, the question instead of the answer, and several boxes."""
    right, question = task.answer, task.prompt
    texts = [
        question,
        rf"\boxed{{{question}}}",
        f"{right} or {right}0",
        rf"\boxed{{{right}}} or \boxed{{0{right}1}}",
        " ".join(rf"\boxed{{{n}}}" for n in range(-5, 6)) + rf"\boxed{{{right}}}",
        " ".join(map(str, [*range(-300, 300), right])),
        rf"\boxed{{{right}, 1000001}}",
        rf"\boxed{{{right}",
        r"\boxed{}",
        f"{right}\n?",
        f"${right}$, ${right}1$",
        rf"\boxed{{x = {right} \text{{ or anything}}}}",
    ]
    number = rational(right)
    if number is not None:
        texts += [
            f"{right}1",
            rf"\boxed{{{right}+0}}",
            rf"\boxed{{\frac{{{2 * number.numerator}}}{{{2 * number.denominator}}}}}",
        ]
    return [*([Reply(text)] for text in texts), [Reply(right, finish_reason="length")]]
