"""Solvers that follow a script, for oracles, cheats and silence."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import Agents, Environment, Episode, Outcome, Reply, Script, Task

SILENCE: Script = (Reply(),)


class ScriptedAgent:
    """Gives the replies of a script, one per turn, and empty replies after the last one.

    Attributes:
        tools: those that it was offered in its last turn.
    """

    def __init__(self, script: Script) -> None:
        self._rest = iter(script)
        self.tools: Sequence[Tool] = ()

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        self.tools = tuple(tools)
        return next(self._rest, Reply())


async def play(environment: Environment, task: Task, script: Script) -> tuple[Episode, Outcome]:
    """Plays a task with a scripted solver, in the company of silent agents, and scores it."""
    silent = {name: ScriptedAgent(()) for name in getattr(environment, "agents", ())}
    episode = await environment.run(task, Agents(ScriptedAgent(script), away=nullcontext, **silent))
    return episode, await environment.score(task, episode)
