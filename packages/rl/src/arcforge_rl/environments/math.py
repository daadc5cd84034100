"""Procedural mathematics: the problems of ``arcforge-conversations``, fractions, quadratic equations, plain sums."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction

from arcforge_core.contracts.environment import Reply, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.copy import ExactEnvironment
from arcforge_rl.configs.commands import ArithmeticConfig
from arcforge_rl.configs.environments import MathConfig
from arcforge_rl.environments.answers import need_math_verify
from arcforge_rl.environments.math_judge import MathVerified, math_cheats
from arcforge_rl.problems.numbers import Algebra, Arithmetic, Expressions, PlainArithmetic, plus
from arcforge_rl.problems.problem import Problem

Drawn = tuple[str, str, str]
"""Operands, which decide the side of the split; question; answer."""


class Math(MathVerified, GeneratedEnvironment):
    """Sums, expressions, equations and more, with the wording and the split of the fine-tuning data."""

    def __init__(self, config: MathConfig) -> None:
        super().__init__(config)
        self._kinds: dict[str, Callable[[random.Random], Drawn]] = {
            "arithmetic": made_by(Arithmetic(config.digits)),
            "expressions": made_by(Expressions(config.steps)),
            "algebra": made_by(Algebra(config.largest)),
            "fractions": lambda draw: fractions(draw, config.largest),
            "quadratics": lambda draw: quadratics(draw, config.largest),
        }
        if "quadratics" in config.kinds:
            need_math_verify()

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task of a random kind."""
        kind = draw.choice(self.config.kinds)
        operands, question, answer = self._kinds[kind](draw)
        return f"{kind}/{operands}", Task(f"{kind}/{question}", question, answer)

    def oracle(self, task: Task) -> Script:
        """Returns the answer in a box."""
        return [Reply(rf"\boxed{{{task.answer}}}")]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns answers among others, and the question instead of the answer."""
        return math_cheats(task)


class PlainMath(ExactEnvironment):
    """``environment=arithmetic``: the first line of the reply must be only the result of, for example, ``12+7=``.

    The comparison is textual, so non-ASCII digits, signs and leading zeros fail.
    """

    domain = "math"

    def __init__(self, config: ArithmeticConfig) -> None:
        super().__init__(config)
        self._drawn = made_by(PlainArithmetic(config.digits, config.operations))

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task."""
        operands, question, answer = self._drawn(draw)
        return f"arithmetic/{operands}", Task(f"arithmetic/{question.removesuffix('=')}", question, answer)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns replies with the right number somewhere in the text."""
        result, question = task.answer, task.prompt
        fullwidth = result.translate({ord(d): ord(d) + 0xFEE0 for d in "0123456789"})
        texts = [
            question,
            question + result,
            f"{result} or {result}0",
            f"{result}.0",
            f"{result},",
            f"+{result}",
            f"0{result}",
            fullwidth,
            f"the answer is {result}",
            f"\n{result}",
            " ".join(map(str, range(-200, 200))),
            "9" * 10_000,
        ]
        return [[Reply(text)] for text in texts]


def made_by(source: Arithmetic | Expressions | Algebra) -> Callable[[random.Random], Drawn]:
    """Returns a generator of tasks from a conversation source without tools."""

    def drawn(draw: random.Random) -> Drawn:
        problem: Problem = source.draw(draw)
        messages = problem.solve(None)  # type: ignore[arg-type]  # nothing is run
        assert messages is not None
        return problem.operands, messages[0]["content"], problem.checked.arguments["answer"]

    return drawn


def fractions(draw: random.Random, largest: int) -> Drawn:
    """Returns a sum, difference or product of two fractions."""
    while True:
        left, right = (Fraction(draw.randint(1, largest), draw.randint(2, largest + 1)) for _ in range(2))
        sign = draw.choice("+-*")
        value = {"+": left + right, "-": left - right, "*": left * right}[sign]
        if left.denominator > 1 and right.denominator > 1:
            break
    low, high = sorted((left, right))
    question = f"What is {left} {sign} {right}? Answer with a whole number or a fraction in lowest terms."
    return f"{low},{high}", question, str(value)


def quadratics(draw: random.Random, largest: int) -> Drawn:
    """Returns a quadratic equation with two whole solutions."""
    first, second = sorted(draw.sample(range(-largest, largest + 1), 2))
    b, c = -(first + second), first * second
    middle = f" {'+' if b > 0 else '-'} {'' if abs(b) == 1 else abs(b)}x" if b else ""
    question = (
        f"Find all solutions of x^2{middle}{plus(c)} = 0. Write them in one \\boxed{{}}, with a comma between them."
    )
    return f"{first},{second}", question, f"{first}, {second}"
