"""Several environments as one, interleaved deterministically so that each part soon has its share of tasks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import Agent, Agents, Environment, Episode, Outcome, Reply, Script, Task
from arcforge_core.episodes.agent import THINKING
from arcforge_core.episodes.rollout import labels_of
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.environments import MixtureConfig
from arcforge_rl.environments.turns import FairTurns

FINEST = 100
"""Maximum tasks of the largest part per round; weights that need more are rounded."""


@dataclass(frozen=True)
class MixtureTask(Task):
    """A part's task.

    Attributes:
        part: name of the part.
        task: the task made by the part.
        thinking: mode of the part, if it has one.
    """

    part: str
    task: Task
    thinking: str | None = None


@dataclass(frozen=True)
class InMode:
    """An agent that renders conversations in a way of its own, unless it is asked for another."""

    agent: Agent
    options: ChatOptions

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Returns the agent's next turn."""
        return await self.agent.reply(messages, tools, options or self.options)


class Mixture:
    """Delegates to the program and verifiers of each part; rewards keep their names.

    Raises:
        ConfigError: a part is unknown or a mixture itself, or it does not have an option.
    """

    domain = "mixture"
    num_tasks = None

    def __init__(self, config: MixtureConfig) -> None:
        self.parts = {name: build_part(name, config) for name in config.parts}
        self.compares = any(getattr(part, "compares", False) for part in self.parts.values())
        needed = (name for part in self.parts.values() for name in getattr(part, "agents", ()))
        self.agents = tuple(dict.fromkeys(needed))
        self._modes = dict(config.thinking)
        self._order = schedule(config.parts)
        self._per_round = {name: self._order.count(name) for name in self.parts}

    def task(self, index: int) -> Task:
        """Returns task number `index`: the next task of the part that is scheduled there."""
        rounds, place = divmod(index, len(self._order))
        part = self._order[place]
        task = self.parts[part].task(rounds * self._per_round[part] + self._order[:place].count(part))
        return MixtureTask(f"{part}/{task.key}", task.prompt, task.answer, part, task, self._modes.get(part))

    def domain_of(self, task: Task) -> str:
        environment, own = self._of(task)
        return environment.domain_of(own)

    def stage_of(self, task: Task) -> str:
        """Returns the name of the task's part."""
        assert isinstance(task, MixtureTask)
        return task.part

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the part's."""
        return labels_of(*self._of(task))

    async def run(self, task: Task, agents: Agents) -> Episode:
        environment, own = self._of(task)
        assert isinstance(task, MixtureTask)
        if task.thinking is not None:
            agents = agents.with_solver(InMode(agents.solver, THINKING[task.thinking]))
        return await environment.run(own, agents)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        environment, own = self._of(task)
        return await environment.score(own, episode)

    async def score_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Outcome]:
        """Returns the outcomes of a task's episodes, compared where the part compares them."""
        environment, own = self._of(task)
        together = getattr(environment, "score_group", None)
        if together is not None:
            outcomes: Sequence[Outcome] = await together(own, episodes)
            return outcomes
        return [await environment.score(own, episode) for episode in episodes]

    def oracle(self, task: Task) -> Script:
        """Returns the part's."""
        environment, own = self._of(task)
        return environment.oracle(own)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the part's."""
        environment, own = self._of(task)
        return environment.cheats(own)

    def _of(self, task: Task) -> tuple[Environment, Task]:
        assert isinstance(task, MixtureTask)
        return self.parts[task.part], task.task


def build_part(name: str, config: MixtureConfig) -> Environment:
    """Builds a part, on the mixture's side of the split."""
    environment = config.environments.get(name, name)
    if environment in ("mixture", config.name):
        raise ConfigError("environment.parts", name, "must not be a mixture itself")
    return build_with(environment, config.options.get(name) or {}, config.split, f"environment.options.{name}")


def build_with(name: str, options: Mapping[str, Any], split: str, field: str) -> Environment:
    """Builds an environment from its name and its options; `field` is where they were given.

    Raises:
        ConfigError: it does not have an option.
    """
    component = registry().get("environment", name)
    schema = component.load_schema()
    known = {field.name for field in dataclasses.fields(schema)} - {"name", "split"}
    for option in options:
        if option not in known:
            raise ConfigError(field, option, f"{name} takes {', '.join(sorted(known))}")
    made: Environment = component.load()(schema(split=split, **options))
    return made


def schedule(parts: dict[str, float]) -> list[str]:
    """Returns the order of parts in one round, with every part as close to its share as possible throughout."""
    largest = max(parts.values())

    def rounded(most: int) -> dict[str, int]:
        return {name: max(1, round(weight / largest * most)) for name, weight in parts.items()}

    def is_exact(most: int) -> bool:
        return all(math.isclose(count / most, parts[name] / largest) for name, count in rounded(most).items())

    counts = rounded(next(filter(is_exact, range(1, FINEST)), FINEST))
    turns = FairTurns(counts)
    return [turns.next(counts) for _ in range(sum(counts.values()))]
