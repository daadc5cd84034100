"""A task service in another process, as an environment: its program asks the policy here, turn by turn.

The policy stays in this process, so that tokens are recorded where they are sampled. The conversation of a rollout:

| request | answer |
| --- | --- |
| ``describe`` | ``version``, ``domain``, ``tasks`` (null: without end) |
| ``begin`` with ``task``, a number | ``ask``, or ``episode`` |
| ``reply`` with ``reply`` | ``ask``, or ``episode`` |
| ``score`` with ``task`` and ``episode`` | ``outcome`` |
| ``cancel`` | nothing else |

``ask`` has ``keep``, the number of messages that the last one had and this one repeats, the ``messages`` after them,
and the ``tools``. Any answer may be a ``failure`` with ``kind`` and ``reason``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arcforge_core.contracts.chat import Message, Tool
from arcforge_core.contracts.environment import (
    FAILURES,
    Agents,
    Episode,
    EpisodeFailure,
    Failure,
    Outcome,
    Script,
    Task,
)
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.orchestrator.record import episode_fields, episode_of, message_of, reply_fields
from arcforge_rl.orchestrator.services.lines import PAUSE, Answer, Line

VERSION = 1
"""Of the conversation."""
DESCRIBE_SECONDS = 60.0
"""In which a service must describe itself."""
TRIES = 3
"""How often it is asked to."""


@dataclass(frozen=True)
class FarTask(Task):
    """A task that the service knows by its number."""

    number: int


class FarEnvironment:
    """Implements `arcforge_core.contracts.environment.Environment`; see the module.

    Args:
        name: of the service; of its tasks and domain, too.
        line: reaches it.
    """

    num_tasks: int | None = None

    def __init__(self, name: str, line: Line) -> None:
        self.domain, self.line = name, line
        self._lives, self._numbers = os.urandom(4).hex(), itertools.count(1)
        self._cancelling: set[asyncio.Task[None]] = set()

    async def describe(self) -> None:
        """Checks that the service is there and speaks this version.

        Raises:
            ConfigError: it does not.
        """
        where = f"collection.services.{self.domain}"
        try:
            async with asyncio.timeout(DESCRIBE_SECONDS):
                answer = await self._description()
        except TimeoutError as error:
            raise ConfigError(where, self.domain, f"does not answer within {DESCRIBE_SECONDS:g} s") from error
        except EpisodeFailure as error:
            raise ConfigError(where, self.domain, f"cannot be reached: {error.failure.reason}") from error
        if answer.get("version") != VERSION:
            raise ConfigError(where, answer.get("version"), f"speaks another version than {VERSION}")
        tasks = answer.get("tasks")
        if tasks is not None and not (isinstance(tasks, int) and tasks > 0):
            raise ConfigError(where, tasks, "must have at least one task, or null for tasks without end")
        self.num_tasks = tasks

    async def _description(self) -> Answer:
        """Asks again where a program or a connection has just ended."""
        for _ in range(TRIES - 1):
            try:
                return await self._ask("describe", "")
            except EpisodeFailure:
                await asyncio.sleep(PAUSE)
        return await self._ask("describe", "")

    async def answers(self) -> None:
        """Returns when the service has answered.

        Raises:
            EpisodeFailure: it is not there.
        """
        await self._ask("describe", "")

    def task(self, index: int) -> Task:
        """Returns the task of a number; the service has its contents."""
        number = index if self.num_tasks is None else index % self.num_tasks
        return FarTask(f"{self.domain}/{number}", "", "", number)

    def domain_of(self, task: Task) -> str:
        """Returns the service's name."""
        return self.domain

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the service's program and the policy talk."""
        assert isinstance(task, FarTask)
        rollout = f"{self._lives}-{next(self._numbers)}"
        messages: list[Message] = []
        ended = False
        try:
            answer = await self._ask("begin", rollout, task=task.number)
            while "ask" in answer:
                with self._reading(answer):
                    asked = answer["ask"]
                    messages = [*messages[: asked.get("keep", 0)], *(message_of(one) for one in asked["messages"])]
                    tools = [Tool(definition) for definition in asked.get("tools", ())]
                reply = await agents.solver.reply(messages, tools)
                answer = await self._ask("reply", rollout, reply=reply_fields(reply))
            ended = True
            with self._reading(answer):
                return episode_of(answer["episode"])
        finally:
            if not ended:
                self._cancel(rollout)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns the service's verdict."""
        assert isinstance(task, FarTask)
        rollout = f"{self._lives}-{next(self._numbers)}"
        answer = await self._ask("score", rollout, task=task.number, episode=episode_fields(episode))
        with self._reading(answer):
            rewards = {name: float(value) for name, value in answer["rewards"].items()}
            raw = {name: float(value) for name, value in answer.get("raw", {}).items()}
            return Outcome(rewards, dict(answer["reasons"]), raw=raw)

    def oracle(self, task: Task) -> Script:
        """A service does not tell.

        Raises:
            ArcforgeError: always.
        """
        raise ArcforgeError(f"the task service {self.domain} has no oracle here: validate it where it runs")

    def cheats(self, task: Task) -> Sequence[Script]:
        """A service does not tell."""
        return ()

    async def close(self) -> None:
        """Closes the line."""
        await asyncio.gather(*self._cancelling, return_exceptions=True)
        await self.line.close()

    async def _ask(self, op: str, rollout: str, **fields: Any) -> Answer:
        answer = await self.line.ask(op, rollout, **fields)
        if "failure" in answer:
            with self._reading(answer):
                failure = Failure(str(answer["failure"]["kind"]), str(answer["failure"]["reason"]))
            kind = failure.kind if failure.kind in FAILURES else "environment"
            raise EpisodeFailure(kind, f"service {self.domain}: {failure.reason}")
        return answer

    def _reading(self, answer: Answer) -> Reading:
        return Reading(self.domain, answer)

    def _cancel(self, rollout: str) -> None:
        """Tells the service that no reply will come; nothing waits for its answer."""

        async def tell() -> None:
            try:
                async with asyncio.timeout(DESCRIBE_SECONDS):
                    await self.line.ask("cancel", rollout)
            except (EpisodeFailure, TimeoutError):
                return  # a service that is gone has nothing to cancel

        task = asyncio.get_running_loop().create_task(tell())
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)


class Reading:
    """``with Reading(...):`` turns an error in reading an answer into a failure of the worker."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.name, self.answer = name, answer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)):
            fields = ", ".join(sorted(map(str, self.answer)))
            reason = (
                f"service {self.name} gives an answer that is none ({type(error).__name__}: {error}; it has {fields})"
            )
            raise EpisodeFailure("worker", reason) from error
