"""``environment=office``: goals in a store, a bank and calendars, each of which is an MCP server in a sandbox."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from arcforge_core.contracts.chat import Message, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import first_here
from arcforge_core.episodes.rewards import reward
from arcforge_core.episodes.tools import ToolEnvironment, converse
from arcforge_rl.configs.office import OfficeConfig
from arcforge_rl.office.goals import Goal, Step, draw_goal, replay
from arcforge_rl.office.servers import office_servers
from arcforge_rl.sandbox.mcp_servers import check_client

END = "records"
"""Artefact: the records of all servers at the end."""


@dataclass(frozen=True)
class OfficeTask(Task):
    """A goal; the answer is empty, because the verdict is of the records."""

    goal: Goal = field(compare=False)


class Office(ToolEnvironment):
    """Generated offices and goals, without end.

    Raises:
        ConfigError: the package of MCP's client is missing.
    """

    domain = "tools"
    judges_work = True

    def __init__(self, config: OfficeConfig) -> None:
        super().__init__(config)
        check_client(config.name)

    def task(self, index: int) -> Task:
        """Returns a drawn task.

        Raises:
            ConfigError: none of many drawn is on this side of the split.
        """
        kind = self.config.kinds[index % len(self.config.kinds)]

        def draw(source: random.Random) -> tuple[str, str]:
            key = f"office/{kind}/{source.getrandbits(32)}"
            return key, key

        key = first_here(self.config, index, draw)
        goal = draw_goal(random.Random(key), kind)
        return OfficeTask(key, goal.text, "", goal)

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the kind of the goal."""
        return (_goal(task).kind,)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver work with the tools of all servers; the episode holds their records at the end.

        Raises:
            EpisodeFailure: a server is gone.
        """
        async with office_servers(_goal(task).records) as servers:
            messages = [Message("user", task.prompt)]
            episode = await converse(agents, messages, servers.tools, servers.use, max_calls=self.config.max_calls)
            with agents.away():
                end = await servers.records()
        return Episode(episode.messages, episode.reply, episode.finish_reason, {END: end})

    @reward(timeout=None)
    def reached(self, task: Task, episode: Episode) -> Score:
        """Compares the records with those that the gold calls leave."""
        goal, found = _goal(task), episode.artefacts.get(END)
        if found is None:
            return Score(0.0, "no records were left")
        wanted = replay(goal.records, goal.gold)
        wrong = [name for name in wanted if found.get(name) != wanted[name]]
        return Score(float(not wrong), f"other records than wanted: {', '.join(wrong)}" if wrong else "as wanted")

    def oracle(self, task: Task) -> Script:
        """Returns the gold calls."""
        return script(_goal(task).gold)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns parts of the work, other work, and words in its place."""
        return [*map(script, _goal(task).cheats), [Reply("Everything that you asked for is done.")]]


def script(steps: Sequence[Step]) -> Script:
    """Returns turns that make calls."""
    return [*(Reply(calls=(ToolCall(name, arguments),)) for name, arguments in steps), Reply("Done.")]


def _goal(task: Task) -> Goal:
    assert isinstance(task, OfficeTask)
    return task.goal
