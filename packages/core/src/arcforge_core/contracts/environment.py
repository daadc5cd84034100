"""The environment contract: frozen typed tasks and a verifier that is total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        key: stable identifier.
        prompt: what the model sees.
        answer: the reference answer, for the verifier only.
    """

    key: str
    prompt: str
    answer: str


class Environment(Protocol):
    """Tasks and their verifier; its target is called as ``target(config)``.

    The empty completion scores 0.
    """

    def task(self, index: int) -> Task:
        """Returns task number `index` >= 0; the same in every process."""

    def score(self, task: Task, completion: str) -> Mapping[str, float]:
        """Returns rewards by name, each in [0, 1], always with ``reward``; never raises on any text."""

    def oracle(self, task: Task) -> str:
        """Returns a completion that scores 1."""

    def cheats(self, task: Task) -> list[str]:
        """Returns completions that try to game the verifier; each must score 0."""
