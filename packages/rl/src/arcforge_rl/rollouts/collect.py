"""Groups of rollouts: sampled, scored, and those that teach nothing replaced."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from arcforge_core.contracts.algorithm import Trace
from arcforge_core.contracts.engine import Engine
from arcforge_core.contracts.environment import Agent, Agents, Environment, Episode, Outcome, Task
from arcforge_core.errors import ArcforgeError
from arcforge_rl.algorithms.scoring import has_spread
from arcforge_rl.configs_learning import RolloutConfig
from arcforge_rl.processes import part, whole
from arcforge_rl.rollouts.clock import Clock
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.solver import Manner, Solver
from arcforge_rl.rollouts.turns import Turns, side_by_side

COUNTS = ("all_right", "all_wrong", "all_equal", "nothing_sampled", "refills")
"""Groups left out because all their rewards are 1, 0 or otherwise equal; rollouts without a token; fillings after the
first."""


@dataclass(frozen=True)
class Rollout:
    """One attempt at a task: what was sampled, what happened, what it earned."""

    number: int
    task: Task
    domain: str
    episode: Episode
    outcome: Outcome
    trace: Trace


@dataclass
class Collected:
    """The rollouts of a step.

    Attributes:
        kept: those that are learnt from, group by group.
        dropped: those of groups that teach nothing.
        counts: how many groups and rollouts were left out, by reason.
        clock: what sampling and scoring took.
    """

    kept: list[list[Rollout]] = field(default_factory=list)
    dropped: list[list[Rollout]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    clock: Clock = field(default_factory=Clock)

    @property
    def traces(self) -> list[Trace]:
        """Returns the traces that are learnt from."""
        return [rollout.trace for group in self.kept for rollout in group]

    @property
    def everything(self) -> list[Rollout]:
        """Returns all rollouts."""
        return [rollout for group in (*self.kept, *self.dropped) for rollout in group]


def roll_out(
    environment: Environment,
    engine: Engine,
    manner: Manner,
    tasks: Sequence[int],
    size: int,
    clock: Clock | None = None,
) -> list[list[Rollout]]:
    """Returns `size` scored rollouts of each task, in order; `clock` learns what it took.

    Of several processes each plays some of the tasks, and all return the rollouts of all.

    Raises:
        ArcforgeError: an environment gives a reward that is not finite; its group would seem to teach nothing.
    """
    groups = part(range(len(tasks)))
    numbers = [group * size + n for group in groups for n in range(size)]
    played = [environment.task(tasks[group]) for group in groups for _ in range(size)]
    turns = Turns(engine)
    solvers = [Solver(turns, number, manner) for number in numbers]
    rollouts = []
    for number, task, solver, (episode, outcome) in zip(
        numbers, played, solvers, play(environment, played, solvers, turns, clock), strict=True
    ):
        name, group = f"{manner.seed}/{number}", f"{manner.seed}/{number // size}"
        branches = [replace(branch, branch_id=f"{name}.{branch.branch_id}") for branch in solver.recorded]
        domain, rewards = environment.domain_of(task), outcome.rewards
        for reward, value in rewards.items():
            if not math.isfinite(value):
                raise ArcforgeError(f"task {task.key}: its environment gives {reward}={value}; rewards are in [0, 1]")
        trace = Trace(task.key, group, name, branches, rewards, teacher=domain, truncated=solver.truncated)
        rollouts.append(Rollout(number, task, domain, episode, outcome, trace))
    return whole([rollouts[n : n + size] for n in range(0, len(rollouts), size)])


def play(
    environment: Environment,
    tasks: Sequence[Task],
    agents: Sequence[Agent],
    turns: Turns,
    clock: Clock | None = None,
) -> list[tuple[Episode, Outcome]]:
    """Returns what happened with each task, and what it earned.

    Args:
        environment: plays and judges.
        tasks: side by side.
        agents: a solver for each.
        turns: of those that ask an engine.
        clock: learns what it took.
    """
    count = clock or Clock()

    async def everything() -> list[tuple[Episode, Outcome]]:
        pairs = zip(tasks, agents, strict=True)
        with count("sampling"):
            episodes = await turns.play([environment.run(task, Agents(agent)) for task, agent in pairs])
        scores = [environment.score(task, episode) for task, episode in zip(tasks, episodes, strict=True)]
        with count("scoring"):
            return list(zip(episodes, await side_by_side(scores), strict=True))

    return asyncio.run(everything())


def collect(
    environment: Environment,
    engine: Engine,
    manner: Callable[[int], Manner],
    config: RolloutConfig,
    curriculum: Curriculum,
) -> Collected:
    """Returns the rollouts of a step.

    Args:
        environment: what is played.
        engine: samples.
        manner: how, in each filling of the step, whose number it is called with.
        config: how many; whether groups whose rewards are all equal are replaced.
        curriculum: which tasks; it learns their pass rates.
    """
    found = Collected()
    for filling in range(1 + (config.refills if config.drop_equal else 0)):
        missing = config.groups - len(found.kept)
        if not missing:
            break
        found.counts["refills"] += filling > 0
        tasks = curriculum.take(missing)
        groups = roll_out(environment, engine, manner(filling), tasks, config.group_size, found.clock)
        for index, group in zip(tasks, groups, strict=True):
            rewards = [rollout.outcome.reward for rollout in group]
            curriculum.learn(index, sum(rewards) / len(rewards))
            usable = [rollout for rollout in group if rollout.trace.num_sampled]
            found.counts["nothing_sampled"] += len(group) - len(usable)
            if usable and (not config.drop_equal or has_spread([rollout.trace for rollout in usable])):
                found.kept.append(usable)
                continue
            found.dropped.append(group)
            edge = {1.0: "all_right", 0.0: "all_wrong"}.get(rewards[0], "all_equal")
            found.counts[edge if usable else "nothing_sampled"] += bool(usable)
    return found
