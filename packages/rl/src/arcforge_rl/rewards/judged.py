"""An environment whose episodes are judged by more than its own verifier."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.contracts.environment import Agents, Environment, Episode, Script, Task
from arcforge_core.episodes.rollout import labels_of, stage_of


class Judged:
    """Base of such environments: tasks, episodes and scripts are those of another one; subclasses score.

    Args:
        environment: has the tasks, plays and verifies.

    Attributes:
        compares: whether a value depends on the other rollouts of a task.
        agents: that the environment asks besides the policy.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment, self.domain, self.num_tasks = environment, environment.domain, environment.num_tasks
        self.compares = bool(getattr(environment, "compares", False))
        self.agents: tuple[str, ...] = tuple(getattr(environment, "agents", ()))

    def task(self, index: int) -> Task:
        """Returns the environment's."""
        return self.environment.task(index)

    def domain_of(self, task: Task) -> str:
        """Returns the environment's."""
        return self.environment.domain_of(task)

    def stage_of(self, task: Task) -> str:
        """Returns the environment's."""
        return stage_of(self.environment, task)

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the environment's."""
        return labels_of(self.environment, task)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Plays the task."""
        return await self.environment.run(task, agents)

    def oracle(self, task: Task) -> Script:
        """Returns the environment's."""
        return self.environment.oracle(task)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the environment's."""
        return self.environment.cheats(task)
