"""Rules about the last reply: precise, narrow, and free of the answer."""

from __future__ import annotations

from arcforge_core.contracts.environment import Episode, Task
from arcforge_rl.configs.rewards import DistinctConfig, WordsConfig


class Words:
    """1 for a reply with a number of words within bounds, else 0."""

    def __init__(self, config: WordsConfig) -> None:
        self.config = config

    async def measure(self, task: Task, episode: Episode) -> float:
        """Counts; words are separated by white space."""
        return float(self.config.least <= len(episode.reply.text.split()) <= self.config.most)


class Distinct:
    """Different word n-grams of a reply, as a share of all: 1 without repetition, and for replies that are shorter."""

    def __init__(self, config: DistinctConfig) -> None:
        self.config = config

    async def measure(self, task: Task, episode: Episode) -> float:
        """Returns the number of different n-grams divided by the number of n-grams."""
        words, size = episode.reply.text.split(), self.config.words
        grams = [tuple(words[n : n + size]) for n in range(len(words) - size + 1)]
        return len(set(grams)) / len(grams) if grams else 1.0
