"""Puzzles of reasoning-gym, with the guarded scorers of `arcforge_rl.problems.puzzle_checker`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import reward
from arcforge_rl.configs.environments import ReasoningGymConfig
from arcforge_rl.problems.puzzle_checker import CANARIES, full_marks, puzzle, question_hash

NUMBERS = 100_000
"""Puzzles of each dataset."""


@dataclass(frozen=True)
class PuzzleTask(Task):
    """A puzzle.

    Attributes:
        dataset: name of the reasoning-gym dataset.
        number: index of the puzzle in it.
    """

    dataset: str
    number: int


class ReasoningGym(GeneratedEnvironment):
    """The whole reply is the answer; only a scorer's full marks count.

    Raises:
        ConfigError: a dataset is unknown or refused, or does not accept its options.
        DataError: reasoning-gym is not installed.
    """

    domain = "puzzles"

    def __init__(self, config: ReasoningGymConfig) -> None:
        super().__init__(config)
        for dataset in config.datasets:
            self._puzzle(dataset, 0)

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a puzzle; equal questions are on the same side of the split."""
        dataset, number = draw.choice(self.config.datasets), draw.randrange(NUMBERS)
        _, entry = self._puzzle(dataset, number)
        key = f"{dataset}/{question_hash(entry)}"
        return key, PuzzleTask(key, entry["question"], entry["answer"], dataset, number)

    @reward()
    def full_marks(self, task: Task, episode: Episode) -> Score:
        """Calls the dataset's scorer in a killable process."""
        assert isinstance(task, PuzzleTask)
        if episode.finish_reason != "stop":
            return Score(0.0, f"the reply was cut off ({episode.finish_reason})")
        made, entry = self._puzzle(task.dataset, task.number)
        text = episode.reply.text.strip()
        if text == task.prompt.strip():
            return Score(0.0, "it is the question again")
        return Score(float(full_marks(made, entry, text)), f"the answer is {text[:80]!r}")

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns junk that scorers have accepted, the question, and the answer among others."""
        right = task.answer
        junk = [text for text in CANARIES if text.strip() != right.strip()]
        texts = [*junk, task.prompt, f"{right} {right} or not"]
        return [*([Reply(text)] for text in texts), [Reply(right, finish_reason="length")]]

    def _puzzle(self, dataset: str, number: int) -> tuple[Any, dict[str, Any]]:
        return puzzle(dataset, self.config.seed, number, self.config.options.get(dataset))
