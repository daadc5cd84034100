"""Several environments as one, kept in balance by number: after every few tasks each part has had its share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Agents, Environment, Episode, Outcome, Script, Task
from arcforge_core.errors import ConfigError
from arcforge_core.registry import registry
from arcforge_rl.configs_environments import MixtureConfig

FINEST = 100
"""Tasks of the largest part in a round, at most: weights that need more are rounded."""


@dataclass(frozen=True)
class MixtureTask(Task):
    """A part's task.

    Attributes:
        part: the part's name.
        task: as the part made it.
    """

    part: str
    task: Task


class Mixture:
    """Each part's own program and verifier at work; rewards keep their names.

    Raises:
        ConfigError: a part is unknown, is a mixture itself, or its options are not its own.
    """

    domain = "mixture"
    num_tasks = None

    def __init__(self, config: MixtureConfig) -> None:
        self.parts = {name: build_part(name, config) for name in config.parts}
        self._order = schedule(config.parts)
        self._per_round = {name: self._order.count(name) for name in self.parts}

    def task(self, index: int) -> Task:
        """Returns task number `index`: the next one of the part whose turn it is."""
        rounds, place = divmod(index, len(self._order))
        part = self._order[place]
        task = self.parts[part].task(rounds * self._per_round[part] + self._order[:place].count(part))
        return MixtureTask(f"{part}/{task.key}", task.prompt, task.answer, part, task)

    def domain_of(self, task: Task) -> str:
        """Returns the domain of the part."""
        environment, own = self._of(task)
        return environment.domain_of(own)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Plays it as the part does."""
        environment, own = self._of(task)
        return await environment.run(own, agents)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Scores it as the part does."""
        environment, own = self._of(task)
        return await environment.score(own, episode)

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
    """Returns a part, on the mixture's side of the split."""
    component = registry().get("environment", name)
    if name == "mixture":
        raise ConfigError("environment.parts", name, "a mixture has no mixture in it")
    schema = component.load_schema()
    known = {field.name for field in dataclasses.fields(schema)} - {"name", "split"}
    options = config.options.get(name) or {}
    for option in options:
        if option not in known:
            raise ConfigError(f"environment.options.{name}", option, f"{name} takes {', '.join(sorted(known))}")
    made: Environment = component.load()(schema(split=config.split, **options))
    return made


def schedule(parts: dict[str, float]) -> list[str]:
    """Returns whose turn it is, for one round; within it, every part is as near to its share as it can be."""
    largest = max(parts.values())

    def rounded(most: int) -> dict[str, int]:
        return {name: max(1, round(weight / largest * most)) for name, weight in parts.items()}

    def is_exact(most: int) -> bool:
        return all(math.isclose(count / most, parts[name] / largest) for name, count in rounded(most).items())

    counts = rounded(next(filter(is_exact, range(1, FINEST)), FINEST))
    owed, order = dict.fromkeys(counts, 0), list[str]()
    for _ in range(sum(counts.values())):
        for name, count in counts.items():
            owed[name] += count
        turn = max(owed, key=lambda name: owed[name])
        owed[turn] -= sum(counts.values())
        order.append(turn)
    return order
