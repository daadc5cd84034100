"""Base classes of environments: one question and one reply, rewards as methods, tasks drawn per side of the split."""

from __future__ import annotations

import asyncio
import functools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self, TypeVar

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import (
    Agents,
    Episode,
    EpisodeFailure,
    NoVerdict,
    Outcome,
    Reply,
    Score,
    Script,
    Task,
    agent_reward,
)
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.killable import verifiers
from arcforge_core.episodes.rewards import TOTAL, Verifier, as_score, judged, read_score, score_of, verifiers_of
from arcforge_core.errors import ConfigError

T = TypeVar("T")
TRIES = 10_000
ATTEMPTS = 2
"""At a judge that gives no verdict."""


class EnvironmentBase(ABC):
    """An `Environment` whose rewards are the methods marked with `reward` and `metric`.

    ``reward`` is the weighted mean of the rewards. A verifier that raises, exceeds its timeout or does not return a
    number of its scale scores 0, with the reason; an ``async`` one that returns none has given no verdict. Plain
    methods with a timeout run in another process, which builds the environment from its config and discards their
    output.

    If the infrastructure breaks, the outcome is a failure without rewards: a verifier raises `SandboxFault` or
    `EpisodeFailure`, its process dies twice, or a judge gives no verdict, `ATTEMPTS` times: `NoVerdict`, an error of a
    connection, or an ``async`` verifier that exceeds its timeout. A metric that fails in this way is left out, unless
    it is the reward of an agent, ``reward_NAME``.

    Attributes:
        agents: names of the agents that `run` needs besides the solver.
        compares: whether the outcomes of a task's episodes depend on each other; see `Environment`.
        judges_work: whether the verdict is of the work that calls of tools have left, whatever the texts say.
        verifiers: the rewards and metrics, by name.
        longest: maximum characters that the policy may write in an episode; more scores 0 without being judged, except
            by rewards without a scale, which bound what their judge reads.

    Raises:
        ConfigError: the class has no reward.
    """

    domain: str = "other"
    num_tasks: int | None = None
    compares: bool = False
    judges_work: bool = False
    agents: tuple[str, ...] = ()
    verifiers: ClassVar[Mapping[str, Verifier]] = {}
    longest: ClassVar[int] = 200_000

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.verifiers = verifiers_of(cls)

    def __init__(self, config: Any) -> None:
        self.config = config
        if not any(verifier.weight for verifier in self.verifiers.values()):
            raise ConfigError("reward", type(self).__name__, "must have a method with @reward()")

    @classmethod
    def for_verifiers(cls, config: Any) -> Self:
        """Returns an environment for the verifier process, which never asks for tasks."""
        return cls(config)

    def warm_up(self) -> None:  # noqa: B027 - most have nothing to import
        """Imports the verifiers' dependencies in their process, outside the time limit of judgements."""

    @abstractmethod
    def task(self, index: int) -> Task:
        """Returns the task of an index, the same whenever it is asked."""

    def domain_of(self, task: Task) -> str:
        """Returns the environment's domain."""
        return self.domain

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Asks the solver once."""
        question = Message("user", task.prompt)
        reply = await agents.solver.reply([question])
        return Episode((question, reply.message), reply, reply.finish_reason)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns all rewards and metrics with their reasons, and the weighted mean."""
        found: dict[str, Score] = {}
        of_agents = {agent_reward(agent) for agent in self.agents}
        for name, verifier in self.verifiers.items():
            try:
                found[name] = await self._verdict(verifier, task, episode)
            except EpisodeFailure as error:
                if verifier.weight or name in of_agents:
                    return Outcome.failed(error.failure)
        weights = {name: verifier.weight for name, verifier in self.verifiers.items() if verifier.weight}
        total = sum(weight * found[name].value for name, weight in weights.items()) / sum(weights.values())
        short = [name for name in weights if found[name].value < 1.0]
        label = "{name}: {reason}" if len(weights) > 1 else "{reason}"
        reasons = [label.format(name=name, reason=found[name].reason) for name in short or list(weights)]
        return Outcome(
            {TOTAL: total} | {name: score.value for name, score in found.items()},
            {TOTAL: "; ".join(reasons)} | {name: score.reason for name, score in found.items()},
            raw={name: score.raw for name, score in found.items() if score.raw is not None},
        )

    async def score_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Outcome]:
        """Returns the outcomes of a task's episodes, in order: each as `score` gives it alone."""
        return await asyncio.gather(*[self.score(task, episode) for episode in episodes])

    def oracle(self, task: Task) -> Script:
        """Returns the reference answer as the only reply."""
        return [Reply(task.answer)]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns scripts that must score 0.

        Raises:
            NotImplementedError: the class has none; the suite of environments asks for them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no cheats(task): return scripts that must score 0")

    async def elsewhere(self, method: str, task: Task, episode: Episode, seconds: float) -> Score:
        """Scores with a plain method of this class, in a process that is killed after `seconds`.

        For `async` rewards that handle simple cases in this process.

        Raises:
            EpisodeFailure: the infrastructure broke.
        """
        pool = verifiers()
        judging = functools.partial(pool.judge, self, method, task, episode, seconds)
        return await asyncio.get_running_loop().run_in_executor(pool.threads, judging)

    async def _verdict(self, verifier: Verifier, task: Task, episode: Episode) -> Score:
        for _ in range(ATTEMPTS - 1):
            with suppress(NoVerdict):
                return await self._judge(verifier, task, episode)
        return await self._judge(verifier, task, episode)

    async def _judge(self, verifier: Verifier, task: Task, episode: Episode) -> Score:
        length = written(episode)
        if length > self.longest and verifier.scale is not None:
            return Score(0.0, f"the policy wrote {length:,} characters; more than {self.longest:,} are not judged")
        method = getattr(self, verifier.method)
        if not verifier.asynchronous:
            if verifier.timeout is None:
                return judged(method, task, episode)
            return await self.elsewhere(verifier.method, task, episode, verifier.timeout)
        try:
            async with asyncio.timeout(verifier.timeout):
                answer = await method(task, episode)
        except ConfigError:
            raise
        except TimeoutError as error:
            raise NoVerdict(f"{verifier.name} did not end within {verifier.timeout} s") from error
        except (Exception, SystemExit) as error:
            return self._raised(verifier, error)
        if not verifier.weight:
            return as_score(answer, None)
        try:
            return read_score(answer, verifier.scale)
        except ValueError as error:
            raise NoVerdict(f"{verifier.name}: {error}") from error

    def _raised(self, verifier: Verifier, error: BaseException) -> Score:
        """Returns the score for an error of an ``async`` verifier; one without a scale has no worst score to give."""
        try:
            found = score_of(error)
        except NoVerdict as none:
            raise NoVerdict(f"{verifier.name}: {none.failure.reason}") from error
        if verifier.weight and verifier.scale is None:
            raise EpisodeFailure("verifier", f"{verifier.name}: {found.reason}") from error
        return found


def written(episode: Episode) -> int:
    """Returns the number of characters written by the policy in an episode, without tool results."""
    turns = sum(len(message.content) for message in episode.messages if message.role == "assistant")
    return max(turns, len(episode.reply.text))


class GeneratedEnvironment(EnvironmentBase):
    """An environment that draws an endless sequence of tasks. Its config has a `seed`."""

    @abstractmethod
    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns the key that decides the side of the split, and the task; all randomness comes from `draw`."""

    def task(self, index: int) -> Task:
        """Returns the first task drawn for this index that is on the configured side of the split.

        Raises:
            ConfigError: no drawn task is on this side.
        """
        return first_here(self.config, index, self.draw)


def first_here(config: Any, index: int, draw: Callable[[random.Random], tuple[str, T]]) -> T:
    """Returns the first of the things drawn for an index that is on the configured side of the split.

    Args:
        config: of the environment, with ``seed`` and ``split``.
        index: of the task.
        draw: returns the key that decides the side, and the thing; all randomness comes from its argument.

    Raises:
        ConfigError: none of `TRIES` is there.
    """
    heldout = config.split == "heldout"
    for attempt in range(TRIES):
        # a string seed gives the same numbers in every process
        key, thing = draw(random.Random(f"{config.seed}/{index}/{attempt}"))
        if is_heldout_task(key) == heldout:
            return thing
    raise ConfigError("environment.split", config.split, f"none of {TRIES:,} tasks drawn is on this side")
