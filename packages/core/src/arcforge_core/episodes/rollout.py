"""The loop that plays tasks: concurrent programs, one engine, a record per rollout."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from arcforge_core.chat.openai import message_for_template
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import Tool
from arcforge_core.contracts.environment import Agent, Agents, Environment, Episode, Failure, Outcome, Reply, Task
from arcforge_core.episodes.agent import PolicyAgent
from arcforge_core.episodes.asking import Asking
from arcforge_core.episodes.lockstep import EngineLoop, Lockstep
from arcforge_core.episodes.rewards import failure_of
from arcforge_core.errors import CheckpointError, ConfigError

T = TypeVar("T")

Clock = Callable[[str], AbstractContextManager[None]]
"""Times a block as the phase ``sampling``, including tools, or ``scoring``: the verifiers after it."""


@dataclass(frozen=True)
class Rollout:
    """One attempt at a task.

    Attributes:
        number: number of the attempt.
        task: the attempted task.
        domain: domain of the task.
        episode: the conversation.
        outcome: the rewards.
        branches: the tokens of the policy, and of further agents that are trained; empty for other solvers.
        truncated: whether the policy's last reply was truncated.
        tools: the tools last offered to the policy.
        stage: stage of training that the task comes from, empty if unknown.
        labels: further names under which the task is counted: its category and its kinds of constraints.
    """

    number: int
    task: Task
    domain: str
    episode: Episode
    outcome: Outcome
    branches: Sequence[Branch] = ()
    truncated: bool = False
    tools: Sequence[Tool] = ()
    stage: str = ""
    labels: Sequence[str] = ()

    @property
    def rollout_id(self) -> str:
        """Unique among the rollouts of one call of `roll_out`."""
        return f"{self.task.key}#{self.number}"

    def record(self) -> dict[str, Any]:
        """Returns what every command writes of a rollout, as plain data; a record of conversations, too.

        Messages and tools are in the format of chat templates; ``length`` is the number of sampled tokens.
        """
        failure = self.outcome.failure
        return {
            "rollout": self.rollout_id,
            "task": self.task.key,
            "domain": self.domain,
            **({"labels": list(self.labels)} if self.labels else {}),
            "messages": [message_for_template(message) for message in self.episode.messages],
            **({"tools": [dict(tool.definition) for tool in self.tools]} if self.tools else {}),
            "answer": self.task.answer,
            "finish_reason": self.episode.finish_reason,
            "rewards": dict(self.outcome.rewards),
            **({"raw": dict(self.outcome.raw)} if self.outcome.raw else {}),
            "reasons": dict(self.outcome.reasons),
            "length": sum(branch.num_sampled for branch in self.branches),
            "truncated": self.truncated,
            "failure": None if failure is None else asdict(failure),
        }

    def as_row(self) -> dict[str, Any]:
        """Returns the record with the policy's tokens."""
        return {**self.record(), "branches": [branch.as_row() for branch in self.branches]}


@dataclass(frozen=True)
class FailedTask(Task):
    """Takes the place of a task that the environment failed to make; its rollouts are failures.

    Attributes:
        failure: the reason.
    """

    failure: Failure


def take_task(environment: Environment, index: int) -> Task:
    """Returns task number `index`, or a `FailedTask` if the environment raises.

    Raises:
        ConfigError, CheckpointError: the environment cannot work, whatever the task is.
    """
    try:
        return environment.task(index)
    except (ConfigError, CheckpointError):
        raise
    except Exception as error:
        return FailedTask(f"task {index}", "", "", failure_by(error))


def failure_by(error: Exception) -> Failure:
    """Returns what an error of an environment's own code says: an infrastructure failure, or one of the code."""
    return failure_of(error) or Failure("environment", f"{type(error).__name__}: {error}")


def roll_out(
    environment: Environment,
    tasks: Iterable[Task],
    agents: Iterable[Agent],
    lockstep: Lockstep,
    *,
    numbers: Iterable[int] | None = None,
    width: int | None = None,
    clock: Clock | None = None,
    group_size: int = 1,
) -> Iterator[Rollout]:
    """Yields scored rollouts in the order in which they end.

    When an episode ends, the next one starts before the engine is called again, so batches stay full until the last
    few episodes. Verifiers run while other episodes continue. If an environment raises or an engine fails, that
    rollout is a failure, and the others continue. The same holds for a `FailedTask`.

    Ctrl-C is answered at any moment, in the midst of an engine's call too: unfinished episodes are cancelled. So the
    loop is run without `asyncio.Runner.run`, whose own handler would first wait for the engine.

    Args:
        environment: plays and scores the tasks.
        tasks: one task per rollout, consumed lazily.
        agents: one solver per task, consumed lazily.
        lockstep: batches the requests of agents to an engine.
        numbers: numbers of the rollouts; None: 0, 1, ...
        width: concurrent episodes; None: all.
        clock: times the phases.
        group_size: rollouts with equal ``number // group_size`` are of one task; an environment that compares them
            scores them together.

    Raises:
        ConfigError, CheckpointError: the environment or the engine cannot work.
        KeyboardInterrupt: the user's, or that of a signal handler.
    """
    entries: Iterator[Entry] = zip(
        itertools.count() if numbers is None else numbers, zip(tasks, agents, strict=True), strict=False
    )
    if width is None:
        everything = list(entries)
        entries, width = iter(everything), len(everything)
    with asyncio.Runner(loop_factory=EngineLoop) as runner:
        crew = _Crew(environment, lockstep, entries, clock or (lambda phase: nullcontext()), group_size)
        loop = runner.get_loop()
        working = loop.create_task(crew.work(width))
        while (rollout := loop.run_until_complete(crew.ended.get())) is not None:
            yield rollout
        loop.run_until_complete(_result(working))


Entry = tuple[int, tuple[Task, Agent]]


class _Crew:
    """Workers that play the entries of one iterator."""

    def __init__(
        self, environment: Environment, lockstep: Lockstep, entries: Iterator[Entry], clock: Clock, group_size: int
    ) -> None:
        self.environment, self.lockstep, self.entries, self.clock = environment, lockstep, entries, clock
        self.ended: asyncio.Queue[Rollout | None] = asyncio.Queue()
        self._judging: list[asyncio.Task[None]] = []
        self._size = group_size if getattr(environment, "compares", False) else 1
        self._played: dict[int, list[Rollout]] = {}  # of groups that are not complete

    async def work(self, workers: int) -> None:
        """Plays and scores all entries; puts None into the queue at the end and after an error."""
        try:
            async with asyncio.TaskGroup() as group:
                with self.clock("sampling"):
                    await asyncio.gather(*[group.create_task(self._play(group)) for _ in range(workers)])
                with self.clock("scoring"):
                    for played in self._played.values():  # groups that will not be complete
                        self._judging.append(group.create_task(self._judge(played)))
                    await asyncio.gather(*self._judging)
        finally:
            self.ended.put_nowait(None)

    async def _play(self, group: asyncio.TaskGroup) -> None:
        for number, (task, agent) in self.entries:
            played = self._played.setdefault(number // self._size, [])
            played.append(await play(self.environment, number, task, agent, self.lockstep))
            if len(played) == self._size:
                del self._played[number // self._size]
                self._judging.append(group.create_task(self._judge(played)))

    async def _judge(self, played: Sequence[Rollout]) -> None:
        for judged in await judge_group(self.environment, played):
            self.ended.put_nowait(judged)


UNSCORED = Outcome({}, {})
"""Outcome of a rollout that was played and not scored."""


async def play(environment: Environment, number: int, task: Task, agent: Agent, asking: Asking) -> Rollout:
    """Returns a rollout that was played: with the outcome `UNSCORED`, or failed.

    Raises:
        ConfigError, CheckpointError: the environment or the engine cannot work.
    """
    episode: Episode | Failure
    policy = agent if isinstance(agent, PolicyAgent) else None
    others = policy.others if policy else {}
    if isinstance(task, FailedTask):
        episode = task.failure
    else:
        with asking.program():
            agents = Agents(agent, away=asking.away, **others)
            episode = await _caught(environment.run(task, agents))
    failure = (policy.failure if policy else None) or (episode if isinstance(episode, Failure) else None)
    outcome = UNSCORED if failure is None else Outcome.failed(failure)
    episode = Episode((), Reply(finish_reason="error"), "error") if isinstance(episode, Failure) else episode
    branches, truncated = (policy.recorded, policy.truncated) if policy else ((), False)
    tools = getattr(agent, "tools", ())
    trained = [branch for other in others.values() for branch in getattr(other, "recorded", ())]
    branches = [*branches, *trained] if trained else branches
    domain = environment.domain if isinstance(task, FailedTask) else environment.domain_of(task)
    labels = () if isinstance(task, FailedTask) else labels_of(environment, task)
    stage = stage_of(environment, task)
    return Rollout(number, task, domain, episode, outcome, branches, truncated, tools, stage, labels)


def stage_of(environment: Environment, task: Task) -> str:
    """Returns the stage of training that a task comes from, if its environment names one."""
    found = None if isinstance(task, FailedTask) else getattr(environment, "stage_of", None)
    return found(task) if found is not None else ""


def labels_of(environment: Environment, task: Task) -> Sequence[str]:
    """Returns what a task is counted under besides its domain, if its environment says so."""
    found = getattr(environment, "labels_of", None)
    return tuple(found(task)) if found is not None else ()


async def judge(environment: Environment, played: Rollout) -> Rollout:
    """Returns the rollout with its rewards, or with the verifier's failure; a failed one as it is.

    Raises:
        ConfigError, CheckpointError: the verifier cannot work.
    """
    (judged,) = await judge_group(environment, [played])
    return judged


async def judge_group(environment: Environment, played: Sequence[Rollout]) -> list[Rollout]:
    """Returns rollouts of one task with their rewards, or with the verifier's failure; failed ones as they are.

    Raises:
        ConfigError, CheckpointError: the verifier cannot work.
    """
    valid = sorted((one for one in played if one.outcome.failure is None), key=lambda one: one.number)
    together = getattr(environment, "score_group", None)
    outcomes: Sequence[Outcome] = []
    if len(valid) > 1 and together is not None:
        found = await _caught(together(valid[0].task, [one.episode for one in valid]))
        if not isinstance(found, Failure) and len(found) != len(valid):
            found = Failure("environment", f"score_group gave {len(found)} outcomes of {len(valid)} episodes")
        outcomes = [Outcome.failed(found)] * len(valid) if isinstance(found, Failure) else found
    else:
        each = [await _caught(environment.score(one.task, one.episode)) for one in valid]
        outcomes = [Outcome.failed(one) if isinstance(one, Failure) else one for one in each]
    by_number = {one.number: outcome for one, outcome in zip(valid, outcomes, strict=True)}
    return [replace(one, outcome=by_number.get(one.number, one.outcome)) for one in played]


async def _caught(work: Coroutine[Any, Any, T]) -> T | Failure:
    """Returns the result of an environment's method, or its failure."""
    try:
        return await work
    except (ConfigError, CheckpointError):
        raise
    except Exception as error:
        return failure_by(error)


async def _result(working: asyncio.Task[None]) -> None:
    """Raises the first error of an exception group."""
    try:
        await working
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
