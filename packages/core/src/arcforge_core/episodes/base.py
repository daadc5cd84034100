"""Base classes of environments: one question and one reply, rewards as methods, tasks drawn per side of the split."""

from __future__ import annotations

import asyncio
import functools
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import (
    Agents,
    Episode,
    EpisodeFailure,
    Outcome,
    Reply,
    Score,
    Script,
    Task,
)
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.killable import verifiers
from arcforge_core.episodes.rewards import TOTAL, Verifier, as_score, is_bounded, judged, score_of, verifiers_of
from arcforge_core.errors import ConfigError

TRIES = 10_000


class EnvironmentBase(ABC):
    """An `Environment` whose rewards are the methods marked with `reward` and `metric`.

    ``reward`` is the weighted mean of the rewards. A verifier that raises, exceeds its timeout or does not return a
    number in [0, 1] scores 0, with the reason. Plain methods with a timeout run in another process, which builds the
    environment from its config and discards their output.

    If the infrastructure breaks, the outcome is a failure without rewards: a verifier raises `SandboxFault` or
    `EpisodeFailure`, its process dies twice, or an ``async`` verifier loses a connection or exceeds its timeout. A
    metric that fails in this way is left out.

    Attributes:
        verifiers: the rewards and metrics, by name.
        longest: maximum characters that the policy may write in an episode; more scores 0 without being judged.

    Raises:
        ConfigError: the class has no reward.
    """

    domain: str = "other"
    num_tasks: int | None = None
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
        for name, verifier in self.verifiers.items():
            try:
                found[name] = await self._judge(verifier, task, episode)
            except EpisodeFailure as error:
                if verifier.weight:
                    return Outcome.failed(error.failure)
        weights = {name: verifier.weight for name, verifier in self.verifiers.items() if verifier.weight}
        total = sum(weight * found[name].value for name, weight in weights.items()) / sum(weights.values())
        short = [name for name in weights if found[name].value < 1.0]
        label = "{name}: {reason}" if len(weights) > 1 else "{reason}"
        reasons = [label.format(name=name, reason=found[name].reason) for name in short or list(weights)]
        return Outcome(
            {TOTAL: total} | {name: score.value for name, score in found.items()},
            {TOTAL: "; ".join(reasons)} | {name: score.reason for name, score in found.items()},
        )

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

    async def _judge(self, verifier: Verifier, task: Task, episode: Episode) -> Score:
        length = written(episode)
        if length > self.longest:
            return Score(0.0, f"the policy wrote {length:,} characters; more than {self.longest:,} are not judged")
        method = getattr(self, verifier.method)
        if not verifier.asynchronous:
            if verifier.timeout is None:
                return judged(method, task, episode)
            return await self.elsewhere(verifier.method, task, episode, verifier.timeout)
        try:
            async with asyncio.timeout(verifier.timeout):
                return as_score(await method(task, episode), bounded=is_bounded(method))
        except ConfigError:
            raise
        except TimeoutError as error:
            raise EpisodeFailure("verifier", f"{verifier.name} did not end within {verifier.timeout} s") from error
        except ConnectionError as error:
            raise EpisodeFailure("verifier", f"{verifier.name}: {type(error).__name__}: {error}") from error
        except (Exception, SystemExit) as error:
            return score_of(error)


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
        heldout = self.config.split == "heldout"
        for attempt in range(TRIES):
            # a string seed gives the same numbers in every process
            key, task = self.draw(random.Random(f"{self.config.seed}/{index}/{attempt}"))
            if is_heldout_task(key) == heldout:
                return task
        raise ConfigError("environment.split", self.config.split, f"none of {TRIES:,} tasks drawn is on this side")
