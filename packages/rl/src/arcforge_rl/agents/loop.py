"""``harness=loop``: the environment's program and tools, with the policy asked over HTTP."""

from __future__ import annotations

import asyncio
from typing import Self

from arcforge_core.contracts.environment import Agents, Episode
from arcforge_rl.agents.chat import ChatAgent, LimitReached
from arcforge_rl.agents.context import Context
from arcforge_rl.agents.harness import LIMIT, TIMEOUT, Work
from arcforge_rl.configs.agents import LoopHarnessConfig


class LoopHarness:
    """Calls the tools of the environment that the policy asks for, until it answers without a call."""

    def __init__(self, config: LoopHarnessConfig) -> None:
        self.config = config

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Holds nothing."""

    async def work(self, work: Work) -> Episode:
        """Lets the environment run; see `Harness.work`."""
        context = Context(self.config.keep_recent, self.config.discard_all)
        agent = ChatAgent(work.gateway, work.session, work.model, work.setup, work.seed, context)
        limit = asyncio.timeout(work.seconds)
        try:
            async with limit:
                return await work.environment.run(work.task, Agents(agent))
        except LimitReached:
            return Episode(agent.messages, agent.last, LIMIT)
        except TimeoutError:
            if not limit.expired():
                raise  # a tool's own
            return Episode(agent.messages, agent.last, TIMEOUT)
