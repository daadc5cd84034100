"""Samples and scores groups of rollouts, and replaces groups without a learning signal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from arcforge_core.contracts.algorithm import Trace
from arcforge_core.contracts.engine import Engine
from arcforge_core.contracts.environment import Environment, Task
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.episodes.rollout import Rollout, roll_out, take_task
from arcforge_core.errors import ArcforgeError
from arcforge_core.train.processes import part, whole
from arcforge_rl.algorithms.scoring import groups, has_spread
from arcforge_rl.configs.learning import RolloutConfig
from arcforge_rl.rollouts.clock import Clock
from arcforge_rl.rollouts.curriculum import Curriculum

COUNTS = ("all_right", "all_wrong", "all_equal", "nothing_sampled", "refills")
"""Groups dropped because all their rewards are 1, 0 or otherwise equal; rollouts without a token; refills of a step."""


@dataclass(frozen=True, kw_only=True)
class TracedRollout(Rollout):
    """A rollout as the trainer sees it.

    Attributes:
        trace: trace with the same branches.
        traces: those that are compared and trained: one for each agent.
    """

    trace: Trace

    @property
    def traces(self) -> list[Trace]:
        return self.trace.by_agent()


@dataclass
class Collected:
    """The rollouts of a step.

    Attributes:
        kept: rollouts to train on, group by group.
        dropped: rollouts of groups without a learning signal, and failed rollouts.
        counts: number of dropped groups and rollouts by reason; ``failed_<kind>`` for failed rollouts.
        clock: the time of sampling and scoring.
        figures: further ones of the source.
    """

    kept: list[list[TracedRollout]] = field(default_factory=list)
    dropped: list[list[TracedRollout]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    clock: Clock = field(default_factory=Clock)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def traces(self) -> list[Trace]:
        """Returns the traces to train on."""
        return [trace for group in self.kept for rollout in group for trace in rollout.traces]

    @property
    def everything(self) -> list[TracedRollout]:
        return [rollout for group in (*self.kept, *self.dropped) for rollout in group]


@dataclass(frozen=True)
class StepTasks:
    """Tasks to play for a step.

    Attributes:
        environment: has the tasks, plays and scores them.
        seed: of all rollouts.
        tasks: task numbers.
        size: rollouts of each task.
        first: number of the first group; groups are numbered through a step.
    """

    environment: Environment
    seed: str
    tasks: Sequence[int]
    size: int
    first: int = 0

    def mine(self) -> list[tuple[int, Task]]:
        """Returns this process's part: the number of each group, and its task."""
        return [(self.first + n, take_task(self.environment, self.tasks[n])) for n in part(range(len(self.tasks)))]

    def numbers(self, group: int) -> range:
        """Returns the numbers of a group's rollouts."""
        return range(group * self.size, (group + 1) * self.size)


RollOut = Callable[[StepTasks, Engine, SamplingSetup, Clock], list[list["TracedRollout"]]]
"""As `roll_out_groups`."""


def roll_out_groups(wanted: StepTasks, engine: Engine, setup: SamplingSetup, clock: Clock) -> list[list[TracedRollout]]:
    """Returns the scored rollouts of each task, in order.

    With several processes, each plays part of the tasks, and all return all rollouts.

    Args:
        wanted: which tasks.
        engine: samples.
        setup: sampling options.
        clock: times the phases.

    Raises:
        ArcforgeError: a reward is not finite; its group would appear to have no learning signal.
    """
    mine = wanted.mine()
    entries = [(number, task) for group, task in mine for number in wanted.numbers(group)]
    numbers, played = [number for number, _ in entries], [task for _, task in entries]
    lockstep = Lockstep(engine, use=clock.engine)
    agents = [PolicyAgent(lockstep, number, setup, f"{wanted.seed}/{number}") for number in numbers]
    ended = roll_out(wanted.environment, played, agents, lockstep, numbers=numbers, clock=clock, group_size=wanted.size)
    found = {one.number: traced(one, wanted.seed, wanted.size) for one in ended}
    return whole([[found[number] for number in wanted.numbers(group)] for group, _ in mine])


def traced(rollout: Rollout, seed: str, size: int) -> TracedRollout:
    """Returns a rollout with its trace, which is named after its seed. A failed rollout has no rewards."""
    for name, value in [*rollout.outcome.rewards.items(), *rollout.outcome.raw.items()]:
        if not math.isfinite(value):
            raise ArcforgeError(f"task {rollout.task.key}: its environment gives {name}={value}, which is not finite")
    name, group = f"{seed}/{rollout.number}", f"{seed}/{rollout.number // size}"
    branches = [branch.named(f"{name}.{branch.branch_id}") for branch in rollout.branches]
    rewards, stage = rollout.outcome.rewards, rollout.stage
    trace = Trace(rollout.task.key, group, name, branches, rewards, rollout.domain, rollout.truncated, stage=stage)
    fields = {field.name: getattr(rollout, field.name) for field in dataclasses.fields(rollout)}
    return TracedRollout(**fields | {"branches": branches}, trace=trace)


def collect(
    environment: Environment,
    engine: Engine,
    setup: SamplingSetup,
    seed: str,
    config: RolloutConfig,
    curriculum: Curriculum,
    drop_equal: Sequence[str],
    roll_out: RollOut = roll_out_groups,
    must_work: bool = True,
) -> Collected:
    """Returns the rollouts of a step. Groups are not replaced when all rollouts of the latest ones failed.

    Args:
        environment: the environment to play.
        engine: samples.
        setup: sampling options.
        seed: seed of the step.
        config: numbers of tasks and rollouts.
        curriculum: chooses the tasks and receives their pass rates.
        drop_equal: groups that are equal in all rewards of these names are replaced; none keeps all.
        roll_out: plays groups.
        must_work: whether a step in which every rollout fails is an error.

    Raises:
        ArcforgeError: with `must_work`, every rollout of the first groups failed.
    """
    found, admitted = Collected(), 0
    for filling in range(1 + (config.refills if drop_equal else 0)):
        missing = config.groups - len(found.kept)
        if not missing:
            break
        found.counts["refills"] += filling > 0
        tasks = curriculum.take(missing)
        wanted = StepTasks(environment, seed, tasks, config.group_size, admitted)
        groups = roll_out(wanted, engine, setup, found.clock)
        admitted += len(tasks)
        failed = why_all_failed(rollout for group in groups for rollout in group)
        if failed and must_work and not filling:
            raise ArcforgeError(failed)
        for index, group in zip(tasks, groups, strict=True):
            scored = without_failures(group, found.counts)
            rewards = [rollout.outcome.reward for rollout in scored]
            if rewards:
                curriculum.learn(index, sum(rewards) / len(rewards))
            usable = [rollout for rollout in scored if rollout.trace.num_sampled]
            found.counts["nothing_sampled"] += len(scored) - len(usable)
            reason = left_out(scored, drop_equal)
            if reason is None:
                found.kept.append(usable)
                if len(scored) < len(group):
                    found.dropped.append([rollout for rollout in group if rollout.outcome.failure])
                continue
            found.dropped.append(group)
            if usable:
                found.counts[reason] += 1
        if failed:
            break
    return found


def left_out(scored: Sequence[TracedRollout], drop_equal: Sequence[str]) -> str | None:
    """Returns why nothing can be learnt from the successful rollouts of a group, one of `COUNTS`; None if it can.

    Args:
        scored: the rollouts with rewards.
        drop_equal: names of rewards; a group in which all of them are equal teaches nothing. None: every group teaches.
    """
    usable = [rollout for rollout in scored if rollout.trace.num_sampled]
    if not usable:
        return "nothing_sampled"
    compared = groups([trace for rollout in usable for trace in rollout.traces])
    if not drop_equal or any(has_spread(traces, drop_equal) for traces in compared.values()):
        return None
    return {1.0: "all_right", 0.0: "all_wrong"}.get(scored[0].outcome.reward, "all_equal")


def without_failures(group: Sequence[TracedRollout], counts: dict[str, int]) -> list[TracedRollout]:
    """Returns the successful rollouts, and counts failures by kind."""
    for rollout in group:
        if rollout.outcome.failure is not None:
            name = f"failed_{rollout.outcome.failure.kind}"
            counts[name] = counts.get(name, 0) + 1
    return [rollout for rollout in group if rollout.outcome.failure is None]


def check_some_worked(rollouts: Iterable[Rollout]) -> None:
    """Checks that at least one rollout succeeded.

    Raises:
        ArcforgeError: all failed; see `why_all_failed`.
    """
    if failed := why_all_failed(rollouts):
        raise ArcforgeError(failed)


def why_all_failed(rollouts: Iterable[Rollout]) -> str:
    """Returns the number of rollouts and the first failure if all of them failed, otherwise an empty text."""
    failures = [rollout.outcome.failure for rollout in rollouts]
    first = failures[0] if failures else None
    if first is None or not all(failures):
        return ""
    return f"all {len(failures)} rollouts failed; the first: {first.kind}: {first.reason}"
