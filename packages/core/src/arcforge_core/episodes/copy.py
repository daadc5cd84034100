"""Core's example environment, and the base of environments with one exact answer."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import reward


class ExactEnvironment(GeneratedEnvironment):
    """The first line of the reply must equal the answer, except for surrounding spaces."""

    @reward(timeout=None)
    def exact(self, task: Task, episode: Episode) -> Score:
        """Compares texts; needs no timeout."""
        first_line = episode.reply.text.split("\n", 1)[0].strip(" \t\r")
        return Score(float(first_line == task.answer), f"the first line is {first_line[:80]!r}")


class CopyEnvironment(ExactEnvironment):
    """The prompt shows a word; the first line of the reply must be that word alone."""

    domain = "copy"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task with random lower-case letters."""
        word = "".join(draw.choices(string.ascii_lowercase, k=self.config.letters))
        return f"copy/{word}", Task(f"copy/{word}", f"Repeat: {word}\n", word)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the prompt, the word among others, doubled, in capitals, on a later line, and white space only."""
        word = task.answer
        doubled, shouted = word + word, word.upper()
        texts = [task.prompt, f"{word} {doubled}", doubled, shouted, f"\n{word}", f"the word is {word}", " \n"]
        return [[Reply(text)] for text in texts]
