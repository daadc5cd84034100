"""``harness=loop``: the environment's program and tools, with the policy asked over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Self

from arcforge_core.contracts.environment import Agents, Episode
from arcforge_core.contracts.sandbox import SandboxBackend
from arcforge_rl.agents.chat import ChatAgent, LimitReached
from arcforge_rl.agents.context import Context
from arcforge_rl.agents.harness import LIMIT, TIMEOUT, Work
from arcforge_rl.agents.mcp import check_installed, connected, has_programs
from arcforge_rl.agents.places import sandboxes_of
from arcforge_rl.agents.tooling import ToolingAgent
from arcforge_rl.configs.agents import AskingHarnessConfig, LoopHarnessConfig


class LoopHarness:
    """Calls the tools of the environment, and of MCP servers, until the policy answers without a call.

    Raises:
        ConfigError: servers are configured, and the client's package or sandboxes for them are not there.
    """

    def __init__(self, config: LoopHarnessConfig) -> None:
        check_installed(config)
        self.config = config
        self._sandboxes: SandboxBackend | None = sandboxes_of(config) if has_programs(config.mcp_servers) else None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._sandboxes is not None:
            await self._stack.enter_async_context(self._sandboxes)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def work(self, work: Work) -> Episode:
        """Lets the environment run; see `Harness.work`."""
        agent = asking_agent(work, self.config)
        if not self.config.mcp_servers:
            return await within(work, agent, lambda: work.environment.run(work.task, Agents(agent)))

        async def run() -> Episode:
            async with connected(self.config, self._sandboxes) as tools:
                tooling = ToolingAgent(agent, tools, self.config.max_tool_calls)
                episode: Episode | Exception
                try:
                    episode = await work.environment.run(work.task, Agents(tooling))
                except Exception as error:
                    episode = error
            if isinstance(episode, Exception):
                raise episode
            return replace(episode, messages=tuple(tooling.whole(episode.messages)))

        return await within(work, agent, run)


def asking_agent(work: Work, config: AskingHarnessConfig) -> ChatAgent:
    """Returns the policy as an agent in the session of some work."""
    context = Context(config.keep_recent, config.discard_all)
    return ChatAgent(work.gateway, work.session, work.model, work.setup, work.seed, context)


async def within(work: Work, agent: ChatAgent, run: Callable[[], Awaitable[Episode]]) -> Episode:
    """Returns the episode of a program, or the work until the time or a limit of the session was reached."""
    limit = asyncio.timeout(work.seconds)
    try:
        async with limit:
            return await run()
    except LimitReached:
        return Episode(agent.messages, agent.last, LIMIT)
    except TimeoutError:
        if not limit.expired():
            raise  # a tool's own
        return Episode(agent.messages, agent.last, TIMEOUT)
