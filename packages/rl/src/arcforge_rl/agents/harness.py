"""The contract of harnesses: a program around the policy that works on one task in one session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from arcforge_core.contracts.environment import Environment, Episode, Task
from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.gateway import Gateway, GatewaySession

TIMEOUT = "timeout"
"""Finish reason of an episode whose time was up; the work until then is graded."""
LIMIT = "limit"
"""Likewise, of one that reached a limit of its session."""


@dataclass(frozen=True)
class Work:
    """One attempt at a task.

    Attributes:
        environment: of the task.
        task: to work on.
        gateway: has the session.
        session: in which the policy answers.
        model: its name there.
        setup: how turns are sampled, for agents that ask by themselves.
        seed: of this attempt.
        seconds: until the episode must end.
    """

    environment: Environment
    task: Task
    gateway: Gateway
    session: GatewaySession
    model: str
    setup: ChatSetup
    seed: str
    seconds: float


class Harness(Protocol):
    """Its target is called as ``target(config)``. It belongs to one event loop; use it as ``async with harness:``."""

    async def work(self, work: Work) -> Episode:
        """Returns the episode, at the latest shortly after `Work.seconds`.

        Raises:
            EpisodeFailure, SandboxFault: the infrastructure failed: the program crashed, a sandbox or gateway broke.
        """

    async def __aenter__(self) -> Harness: ...

    async def __aexit__(self, *exception: object) -> None: ...
