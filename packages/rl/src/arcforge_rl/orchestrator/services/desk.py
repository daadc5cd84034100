"""The task services of a run: the service of each group, limits on running rollouts, and progress."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from arcforge_core.contracts.environment import Environment
from arcforge_rl.configs.collection import AsynchronousConfig, ServiceConfig
from arcforge_rl.configs.learning import CurriculumConfig
from arcforge_rl.environments.mixture import build_with
from arcforge_rl.environments.turns import FairTurns
from arcforge_rl.orchestrator.group import GroupKey
from arcforge_rl.orchestrator.services.far import FarEnvironment
from arcforge_rl.orchestrator.services.lines import HttpLine, ProgramLine
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.sampler import Sampler

WINDOW = 32
"""Groups of a service over which its progress is measured."""
BELIEF = 4.0
"""Groups that count as half teaching before any is known, so that few groups move a ratio little."""


@dataclass
class Service:
    """A task service.

    Attributes:
        name: unique in the run.
        environment: plays and scores its tasks.
        config: ratio and limits.
        curriculum: chooses its tasks.
        running: its rollouts that run.
        taught: of its last `WINDOW` groups, whether they taught something.
        counts: ``groups`` that have ended, ``failed`` rollouts, by kind ``failed_<kind>``.
        rewards: sum of the mean rewards of those groups.
        dead: whether its process is gone, so that it gets no work.
    """

    name: str
    environment: Environment
    config: ServiceConfig
    curriculum: Curriculum
    running: int = 0
    taught: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    counts: Counter[str] = field(default_factory=Counter)
    rewards: float = 0.0
    next_start: float = float("-inf")
    dead: bool = False

    @property
    def progress(self) -> float:
        """Share of its recent groups that taught something, in (0, 1)."""
        return (sum(self.taught) + BELIEF / 2) / (len(self.taught) + BELIEF)

    @property
    def title(self) -> str:
        """Its name in errors, and among the processes of a run."""
        return f"task service {self.name}" if self.name else f"environment {self.config.environment}"

    def learn(self, rate: float, taught: bool) -> None:
        """A group has ended with this mean reward."""
        self.taught.append(taught)
        self.counts["groups"] += 1
        self.rewards += rate

    def close_soon(self, now: float) -> None:
        """Counts a start against `per_minute`."""
        if self.config.per_minute is not None:
            self.next_start = max(now, self.next_start) + 60.0 / self.config.per_minute


class Services:
    """A `Desk` for the scheduler. Ratios move with progress, within `adjust`; their state is in the ledger.

    Args:
        services: at least one, with different names.
        adjust: see `AsynchronousConfig`.
        limit: slots in all.
        sandbox_mb: memory of the sandboxes in all; None: no limit.
        clock: seconds.
    """

    def __init__(
        self,
        services: list[Service],
        adjust: float = 1.0,
        limit: int = 1 << 30,
        sandbox_mb: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.by_name = {service.name: service for service in services}
        self.adjust, self.limit, self.sandbox_mb, self.clock = adjust, limit, sandbox_mb, clock
        self.turns = FairTurns(self.by_name)
        self.of: dict[GroupKey, Service] = {}

    # ---- for the scheduler -------------------------------------------------------------------------------------------

    def admit(self, key: GroupKey) -> bool:
        """Chooses the service whose turn it is among those that may start a rollout; see `Desk`."""
        ratios = {name: ratio for name, ratio in self.ratios().items() if self._has_room(self.by_name[name])}
        if not ratios:
            return False
        self.of[key] = self.by_name[self.turns.next(ratios)]
        return True

    def may_start(self, key: GroupKey) -> bool:
        """Whether the group's service and all together are within their limits."""
        return self._has_room(self.of[key])

    def runs(self, key: GroupKey, change: int) -> None:
        """Counts."""
        service = self.of[key]
        service.running += change
        if change > 0:
            service.close_soon(self.clock())

    def _has_room(self, service: Service) -> bool:
        if service.dead:
            return False
        config, everyone = service.config, self.by_name.values()
        if config.concurrency is not None and service.running >= config.concurrency:
            return False
        if self.clock() < service.next_start:
            return False
        slots = sum(one.running * one.config.slots for one in everyone)
        if slots and slots + config.slots > self.limit:  # alone, a rollout with more slots than there are runs
            return False
        memory = sum(one.running * one.config.sandbox_mb for one in everyone)
        return self.sandbox_mb is None or memory + config.sandbox_mb <= self.sandbox_mb

    @property
    def wait(self) -> float | None:
        """Seconds until a service that starts too fast may start again; None if none waits."""
        now = self.clock()
        waits = [service.next_start - now for service in self.by_name.values() if service.next_start > now]
        return min(waits, default=None)

    # ---- ratios ------------------------------------------------------------------------------------------------------

    def ratios(self) -> dict[str, float]:
        """Returns the present ratio of each service."""
        found = self.by_name.values()
        mean = sum(service.progress for service in found) / len(found)
        return {
            service.name: service.config.ratio * min(self.adjust, max(1.0 / self.adjust, service.progress / mean))
            for service in found
        }

    def figures(self) -> dict[str, float]:
        """Returns progress, ratio and failures of each service, if there are several."""
        if len(self.by_name) == 1:
            return {}
        ratios, found = self.ratios(), dict[str, float]()
        for name, service in self.by_name.items():
            values: dict[str, float] = {
                "ratio": ratios[name] / sum(ratios.values()),
                "running": service.running,
                "teaches": service.progress,
                "groups": service.counts["groups"],
                "failed": service.counts["failed"],
            }
            if service.counts["groups"]:
                values["reward"] = service.rewards / service.counts["groups"]
            found |= {f"service_{name}_{what}": value for what, value in values.items()}
        return found

    def thrown_away(self) -> Counter[str]:
        """Returns the number of answers of services that were for nothing, and of their programs' restarts."""
        total: Counter[str] = Counter()
        for environment in self.far().values():
            total.update({f"service_{name}": count for name, count in environment.line.counts.items()})
        return +total

    # ---- beginning and end -------------------------------------------------------------------------------------------

    def restore(self, owed: Mapping[str, float]) -> None:
        """Continues the turns of a recorded run; services that were added or removed since begin even."""
        self.turns.owed |= {name: value for name, value in owed.items() if name in self.by_name}

    async def open(self) -> None:
        """Checks that every service is there.

        Raises:
            ConfigError: one is not.
        """
        await asyncio.gather(*(environment.describe() for environment in self.far().values()))

    def far(self) -> dict[str, FarEnvironment]:
        """Returns the services in other processes by title."""
        found = self.by_name.values()
        return {one.title: one.environment for one in found if isinstance(one.environment, FarEnvironment)}

    def change(self, title: str, alive: bool) -> Callable[[GroupKey], bool]:
        """A service in another process has died, or is back; returns which groups are its."""
        (service,) = [one for one in self.by_name.values() if one.title == title]
        service.dead = not alive
        if not alive:
            self.far()[title].line.kill()
        return lambda key: self.of.get(key) is service

    async def close(self) -> None:
        """Ends connections and programs."""
        for environment in self.far().values():
            await environment.close()


def services_of(config: AsynchronousConfig, sampler: Sampler, limit: int) -> Services:
    """Returns the services of a run: those of ``collection.services``, or its environment alone."""
    found = [
        Service(name, environment_of(name, one), one, Curriculum(sampler.config.curriculum, sampler.config.seed))
        for name, one in config.services.items()
    ]
    own = ServiceConfig(environment=sampler.config.environment.name)
    found = found or [Service("", sampler.training, own, sampler.curriculum)]
    return Services(found, config.adjust, limit, config.sandbox_mb)


def single(environment: Environment, curriculum: Curriculum | None = None) -> Services:
    """Returns the services of one environment without limits."""
    curriculum = curriculum or Curriculum(CurriculumConfig(), 0)
    return Services([Service("", environment, ServiceConfig(environment=environment.domain), curriculum)])


def environment_of(name: str, config: ServiceConfig) -> Environment:
    """Builds what plays the tasks of a service.

    Raises:
        ConfigError: the environment is unknown, or does not have an option.
    """
    if config.environment is not None:
        where = f"collection.services.{name}.options"
        return build_with(config.environment, config.options, "train", where)
    line = HttpLine(name, config.url) if config.url is not None else ProgramLine(name, config.command)
    return FarEnvironment(name, line)
