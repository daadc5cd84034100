"""What most environments inherit: one question and one reply, rewards as methods, tasks drawn on their side."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agents, Episode, Outcome, Reply, Score, Script, Task
from arcforge_core.data.split import is_heldout_task
from arcforge_core.environments.killable import verifiers
from arcforge_core.environments.rewards import TOTAL, Rewarded, Verifier, as_score, failed
from arcforge_core.errors import ConfigError

TRIES = 10_000


class EnvironmentBase(metaclass=Rewarded):
    """An `Environment` whose rewards are the methods marked with `reward` and `metric`.

    ``reward`` is the mean of the rewards with their weights. A verifier that raises, does not end in time, dies or
    returns something that is no number in [0, 1] scores 0, and the reason says so. Plain methods with a timeout run in
    another process, where the environment is made anew from its config; what they print is thrown away.

    Attributes:
        longest: characters of the last reply, and of the whole conversation, that verifiers are given; more scores 0.

    Raises:
        ConfigError: the class has no reward.
    """

    domain: str = "other"
    num_tasks: int | None = None
    longest: ClassVar[int] = 200_000

    def __init__(self, config: Any) -> None:
        self.config = config
        if not any(verifier.weight for verifier in type(self).verifiers.values()):
            raise ConfigError("reward", type(self).__name__, "must have a method with @reward()")

    @classmethod
    def for_verifiers(cls, config: Any) -> Self:
        """Returns an environment for the process that verifiers run in, which is asked for no tasks."""
        return cls(config)

    def warm_up(self) -> None:
        """Imports what the verifiers need, in the process that they run in; no judgement is timed with it."""

    def task(self, index: int) -> Task:
        """Returns task number `index`."""
        raise NotImplementedError

    def domain_of(self, task: Task) -> str:
        """Returns the environment's domain."""
        return self.domain

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Asks the solver once."""
        question = Message("user", task.prompt)
        reply = await agents.solver.reply([question])
        return Episode((question, reply.message), reply, reply.finish_reason)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns all rewards and metrics, their reasons and the mean."""
        found = {name: await self._judge(verifier, task, episode) for name, verifier in type(self).verifiers.items()}
        weights = {name: verifier.weight for name, verifier in type(self).verifiers.items() if verifier.weight}
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
        """Returns scripts that must score 0."""
        raise NotImplementedError

    async def elsewhere(self, method: str, task: Task, episode: Episode, seconds: float) -> Score:
        """Returns what a plain method of this class finds, in a process that is killed after so many seconds.

        For `async` rewards that decide simple cases here.
        """
        return await asyncio.to_thread(verifiers().judge, self, method, task, episode, seconds)

    async def _judge(self, verifier: Verifier, task: Task, episode: Episode) -> Score:
        length = len(episode.reply.text) + sum(len(message.content) for message in episode.messages)
        if length > self.longest:
            return Score(0.0, f"{length:,} characters; more than {self.longest:,} are not looked at")
        method = getattr(self, verifier.method)
        try:
            if verifier.asynchronous:
                async with asyncio.timeout(verifier.timeout):
                    return as_score(await method(task, episode))
            if verifier.timeout is None:
                return as_score(method(task, episode))
            return await self.elsewhere(verifier.method, task, episode, verifier.timeout)
        except ConfigError:
            raise
        except TimeoutError:
            return Score(0.0, f"the verifier did not end within {verifier.timeout} s")
        except (Exception, SystemExit) as error:  # total: whatever it is, it is no point
            return failed(error)


class GeneratedEnvironment(EnvironmentBase):
    """An environment that draws its tasks, and never runs out of them. Its config has a `seed`."""

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns what decides the side of the split, and the task; everything random comes from `draw`."""
        raise NotImplementedError

    def task(self, index: int) -> Task:
        """Returns the first task of the side that is drawn for this number.

        Raises:
            ConfigError: this side has none.
        """
        heldout = self.config.split == "heldout"
        for attempt in range(TRIES):
            # a string seeds alike in every process
            key, task = self.draw(random.Random(f"{self.config.seed}/{index}/{attempt}"))
            if is_heldout_task(key) == heldout:
                return task
        raise ConfigError("environment.split", self.config.split, f"none of {TRIES:,} tasks drawn is on this side")
