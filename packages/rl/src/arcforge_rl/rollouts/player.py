"""Players of rollouts on an event loop: the policy in this process, or an agent around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from arcforge_core.contracts.environment import Environment, Task
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup
from arcforge_core.episodes.asking import Asking
from arcforge_core.episodes.rollout import Rollout, play


class Player(Protocol):
    """Plays rollouts, several at a time."""

    async def play(self, environment: Environment, number: int, task: Task, seed: str) -> Rollout:
        """Returns a rollout that was played: with the outcome `UNSCORED`, or failed.

        Args:
            environment: has the task.
            number: of the rollout.
            task: to attempt; a `FailedTask` is a failure.
            seed: of its tokens.

        Raises:
            ConfigError, CheckpointError: no rollout can be played.
        """


OpenPlayer = Callable[[SamplingSetup], AbstractAsyncContextManager[Player]]
"""Opens a player on the running event loop."""


@dataclass(frozen=True)
class PolicyPlayer:
    """The environment's program asks the policy in this process.

    Attributes:
        asking: takes requests to the engine.
        setup: how the policy samples.
    """

    asking: Asking
    setup: SamplingSetup

    async def play(self, environment: Environment, number: int, task: Task, seed: str) -> Rollout:
        """Plays with a fresh agent; see `Player`."""
        return await play(environment, number, task, PolicyAgent(self.asking, number, self.setup, seed), self.asking)
