"""Integer arithmetic with one exact answer: ``12+7=``."""

from __future__ import annotations

import operator
import random

from arcforge_core.contracts.environment import Task
from arcforge_core.environments import exact_answer
from arcforge_rl.configs import ArithmeticConfig

OPERATIONS = {"add": ("+", operator.add), "subtract": ("-", operator.sub), "multiply": ("*", operator.mul)}


class Arithmetic:
    """Two numbers of up to `digits` digits; the completion's first line must be the result and nothing else."""

    def __init__(self, config: ArithmeticConfig) -> None:
        self.config = config

    def task(self, index: int) -> Task:
        """Returns task number `index`."""
        draw = random.Random(f"{self.config.seed}/{index}")  # a string seeds alike in every process
        left, right = (draw.randrange(10**self.config.digits) for _ in range(2))
        sign, function = OPERATIONS[draw.choice(self.config.operations)]
        question = f"{left}{sign}{right}"
        return Task(f"arithmetic/{index}/{question}", f"{question}=", str(function(left, right)))

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """Returns ``reward``. Text is compared, not numbers, so foreign digits, signs and leading zeros fail."""
        return exact_answer(task, completion)

    def oracle(self, task: Task) -> str:
        """Returns the result."""
        return task.answer

    def cheats(self, task: Task) -> list[str]:
        """Returns ways to have the right number somewhere in the text."""
        result, question = task.answer, task.prompt
        fullwidth = result.translate({ord(d): ord(d) + 0xFEE0 for d in "0123456789"})
        return [
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
