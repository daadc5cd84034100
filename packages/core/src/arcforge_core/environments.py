"""Core's plain environment, and what single-answer verifiers share."""

from __future__ import annotations

import random
import string

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.environment import Task


def exact_answer(task: Task, completion: str) -> dict[str, float]:
    """Scores 1 when the first line is the answer, character for character, spaces around it aside; else 0."""
    first_line = completion.split("\n", 1)[0].strip(" \t\r")
    return {"reward": float(first_line == task.answer)}


class CopyEnvironment:
    """The prompt shows a word, the completion must be that word alone on its first line."""

    def __init__(self, config: CopyConfig) -> None:
        self.config = config

    def task(self, index: int) -> Task:
        """Returns task number `index`: random lower-case letters."""
        draw = random.Random(f"{self.config.seed}/{index}")  # a string seeds alike in every process
        word = "".join(draw.choices(string.ascii_lowercase, k=self.config.letters))
        return Task(f"copy/{index}/{word}", f"Repeat: {word}\n", word)

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """Returns ``reward``."""
        return exact_answer(task, completion)

    def oracle(self, task: Task) -> str:
        """Returns the word."""
        return task.answer

    def cheats(self, task: Task) -> list[str]:
        """Returns the prompt again, the word among others, doubled, shouted, late, and nothing but space."""
        word = task.answer
        doubled, shouted = word + word, word.upper()
        return [task.prompt, f"{word} {doubled}", doubled, shouted, f"\n{word}", f"the word is {word}", " \n"]
