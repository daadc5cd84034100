"""Integer arithmetic with one exact answer: ``12+7=``."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence

from arcforge_core.contracts.environment import Reply, Script, Task
from arcforge_core.environments.copy import ExactEnvironment

OPERATIONS = {"add": ("+", operator.add), "subtract": ("-", operator.sub), "multiply": ("*", operator.mul)}


class Arithmetic(ExactEnvironment):
    """Two numbers of up to `digits` digits; the reply's first line must be the result and nothing else.

    Text is compared, not numbers, so foreign digits, signs and leading zeros fail.
    """

    domain = "math"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task; all of the same two numbers are on one side of the split."""
        left, right = (draw.randrange(10**self.config.digits) for _ in range(2))
        sign, function = OPERATIONS[draw.choice(self.config.operations)]
        question = f"{left}{sign}{right}"
        low, high = sorted((left, right))
        return f"arithmetic/{low},{high}", Task(f"arithmetic/{question}", f"{question}=", str(function(left, right)))

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns ways to have the right number somewhere in the text."""
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
