"""Base of the objectives: tasks with a category and kinds, and figures by both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from arcforge_core.contracts.environment import Reply, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment

T = TypeVar("T", bound="ObjectiveTask")


@dataclass(frozen=True)
class ObjectiveTask(Task):
    """A task with what it is counted under.

    Attributes:
        skill: its domain.
        category: kind of request.
        kinds: kinds of constraints, or of problems.
    """

    skill: str
    category: str
    kinds: tuple[str, ...]


class Objective(GeneratedEnvironment):
    """Base of the objectives."""

    def domain_of(self, task: Task) -> str:
        """Returns the task's skill."""
        return of(task, ObjectiveTask).skill

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the category and the kinds."""
        known = of(task, ObjectiveTask)
        return [f"category:{known.category}", *(f"kind:{kind}" for kind in known.kinds)]


def of(task: Task, kind: type[T]) -> T:
    """Returns a task as one of its environment's."""
    assert isinstance(task, kind)
    return task


def replies(*texts: str) -> list[Script]:
    """Returns a script for each text."""
    return [[Reply(text)] for text in texts]
