"""Core's plain environment, and what verifiers of a single exact answer share."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.environments.base import GeneratedEnvironment
from arcforge_core.environments.rewards import reward


class ExactEnvironment(GeneratedEnvironment):
    """The first line of the reply must be the answer, character for character, spaces around it aside."""

    @reward(timeout=None)
    def exact(self, task: Task, episode: Episode) -> Score:
        """Compares texts, which is bounded by itself."""
        first_line = episode.reply.text.split("\n", 1)[0].strip(" \t\r")
        return Score(float(first_line == task.answer), f"the first line is {first_line[:80]!r}")


class CopyEnvironment(ExactEnvironment):
    """The prompt shows a word, the reply must be that word alone on its first line."""

    domain = "copy"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task with random lower-case letters."""
        word = "".join(draw.choices(string.ascii_lowercase, k=self.config.letters))
        return f"copy/{word}", Task(f"copy/{word}", f"Repeat: {word}\n", word)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the prompt again, the word among others, doubled, shouted, late, and nothing but space."""
        word = task.answer
        doubled, shouted = word + word, word.upper()
        texts = [task.prompt, f"{word} {doubled}", doubled, shouted, f"\n{word}", f"the word is {word}", " \n"]
        return [[Reply(text)] for text in texts]
