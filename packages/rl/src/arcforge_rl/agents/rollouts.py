"""Rollouts of agents: a session for each attempt, the record's branches to train on, the environment's verdict."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from arcforge_core.config.schema import HarnessConfig
from arcforge_core.contracts.engine import Engine
from arcforge_core.contracts.environment import Environment, Episode, EpisodeFailure, Failure, Outcome, Reply, Task
from arcforge_core.contracts.sessions import SessionRecord
from arcforge_core.episodes.agent import ChatDialogue, SamplingSetup
from arcforge_core.episodes.loops import run_to_end
from arcforge_core.episodes.rollout import UNSCORED, FailedTask, Rollout, failure_by, judge, labels_of, stage_of
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_core.train.processes import whole
from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.command import ProgramCrashed
from arcforge_rl.agents.gateway import Gateway, GatewaySession
from arcforge_rl.agents.harness import LIMIT, Harness, Work
from arcforge_rl.configs.agents import AskingHarnessConfig
from arcforge_rl.rollouts.clock import Clock
from arcforge_rl.rollouts.collect import StepTasks, TracedRollout, traced

log = logging.getLogger("arcforge.agents")
UNFINISHED = ("abort", "error")
"""Finish reasons of turns that the engine or the gateway did not finish."""


def build_harness(config: HarnessConfig) -> Harness:
    """Builds the configured agent.

    Raises:
        ConfigError: it cannot work on this machine.
    """
    harness: Harness = registry().get("harness", config.name).load()(config)
    return harness


@dataclass
class AgentRollouts:
    """Plays rollouts of agents before a gateway.

    A rollout whose program crashed, or whose sandbox, gateway or engine broke, is played again in another session, up
    to `HarnessConfig.attempts` times; then it is a failure. One whose time or session's limits are exhausted is the
    policy's own and is graded.

    Args:
        config: of the agent.
        gateway_url: of a server with sessions.
        key: one that may open sessions, if the server has keys.

    Attributes:
        counts: attempts that were repeated, by ``repeated_<kind>``.
    """

    config: HarnessConfig
    gateway_url: str
    key: str | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def play_step(
        self, wanted: StepTasks, engine: Engine, setup: SamplingSetup, clock: Clock
    ) -> list[list[TracedRollout]]:
        """Plays groups for a trainer in place of `roll_out_groups`. The engine's server is that of the gateway.

        Raises:
            ConfigError, CheckpointError: environment, agent or gateway cannot work.
        """
        return self.play(wanted, self._chat(setup), clock)

    def open(self, setup: SamplingSetup) -> AbstractAsyncContextManager[AgentPlayer]:
        """Opens a player for an asynchronous collection; its errors are those of `play_step`."""
        return self.player(self._chat(setup))

    def play(self, wanted: StepTasks, setup: ChatSetup, clock: Clock | None = None) -> list[list[TracedRollout]]:
        """Returns the scored rollouts of each task, in order; `clock` times sampling, verdicts included.

        With several processes, each plays part of the tasks, and all return all rollouts.

        Raises:
            ConfigError, CheckpointError: environment, agent or gateway cannot work.
        """
        with (clock or Clock())("sampling"):
            try:
                return whole(run_to_end(self._groups(wanted, setup)))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors

    @asynccontextmanager
    async def player(self, setup: ChatSetup) -> AsyncIterator[AgentPlayer]:
        """Yields a player on the running event loop.

        Args:
            setup: how turns are sampled.

        Raises:
            ConfigError: agent or gateway cannot work.
        """
        asked = Gateway(self.gateway_url, self.key, patience=self.config.gateway_seconds)
        async with asked as gateway, build_harness(self.config) as harness:
            try:
                model = await gateway.model()
            except EpisodeFailure as error:
                raise ConfigError("harness", self.config.name, f"the gateway does not answer: {error}") from error
            yield AgentPlayer(self.config, harness, gateway, model, setup, self.counts)

    async def _groups(self, wanted: StepTasks, setup: ChatSetup) -> list[list[TracedRollout]]:
        """Does this process's part of `play`."""
        mine = wanted.mine()
        async with self.player(setup) as player:

            async def one(task: Task, number: int) -> TracedRollout:
                played = await player.play(wanted.environment, number, task, f"{wanted.seed}/{number}")
                return traced(await judge(wanted.environment, played), wanted.seed, wanted.size)

            async with asyncio.TaskGroup() as group:
                work = [[group.create_task(one(task, n)) for n in wanted.numbers(number)] for number, task in mine]
        return [[rollout.result() for rollout in rollouts] for rollouts in work]

    def _chat(self, setup: SamplingSetup) -> ChatSetup:
        if not isinstance(setup.dialogue, ChatDialogue):
            raise ConfigError("harness", self.config.name, "needs a policy with a chat template")
        return ChatSetup(setup.max_new_tokens, setup.temperature, setup.sampled_logprobs, setup.dialogue.options)


class AgentPlayer:
    """Plays the attempts at tasks; a `arcforge_rl.rollouts.player.Player`, made by `AgentRollouts`."""

    def __init__(
        self,
        config: HarnessConfig,
        harness: Harness,
        gateway: Gateway,
        model: str,
        setup: ChatSetup,
        counts: Counter[str],
    ) -> None:
        self.config, self.harness, self.gateway, self.model, self.setup = config, harness, gateway, model, setup
        self.counts, self._places = counts, asyncio.Semaphore(config.concurrency)

    async def play(self, environment: Environment, number: int, task: Task, seed: str) -> Rollout:
        """Plays when one of `HarnessConfig.concurrency` places is free; see `Player`."""
        if isinstance(task, FailedTask):
            return failed(number, task, environment.domain, task.failure)
        attempts = self.config.attempts
        for attempt in range(attempts):
            try:
                async with self._places:
                    return await self._attempt(environment, number, task, seed)
            except (ConfigError, CheckpointError):
                raise
            except Exception as error:
                failure = failure_by(error)
                log.warning("rollout %s, attempt %d of %d: %s", seed, attempt + 1, attempts, failure.reason)
            if attempt + 1 < attempts:
                self.counts[f"repeated_{failure.kind}"] += 1
        return failed(number, task, environment.domain_of(task), failure)

    async def _attempt(self, environment: Environment, number: int, task: Task, seed: str) -> Rollout:
        session = await self.gateway.open({"rollout": seed}, {**self.config.limits, **self._imposed(seed)})
        try:
            work = Work(environment, task, self.gateway, session, self.model, self.setup, seed, self.config.seconds)
            episode, crash = await self.harness.work(work), None
        except ProgramCrashed as error:
            episode, crash = error.episode, error
        except BaseException:
            await self._leave(session)
            raise
        record = await self.gateway.close(session)
        if crash is not None:
            episode = forgiven(crash, record, self.config)
        played = rollout_of(number, task, environment.domain_of(task), episode, record)
        return replace(played, stage=stage_of(environment, task), labels=labels_of(environment, task))

    def _imposed(self, seed: str) -> dict[str, Any]:
        """Returns what the session imposes; harnesses that ask themselves have own seeds, their environments modes."""
        imposed = self.setup.imposed(seed)
        own = ("seed", "chat_template_kwargs") if isinstance(self.config, AskingHarnessConfig) else ()
        return {name: value for name, value in imposed.items() if name not in own}

    async def _leave(self, session: GatewaySession) -> None:
        """Closes the session of an attempt that failed; its record is of no use."""
        try:
            await asyncio.shield(self.gateway.close(session))
        except EpisodeFailure as error:
            log.warning("session %s stays open: %s", session.id, error)


def forgiven(crash: ProgramCrashed, record: SessionRecord, config: HarnessConfig) -> Episode:
    """Returns the episode of a program that crashed because its session's limits were exhausted, which is graded.

    Raises:
        EpisodeFailure: it crashed otherwise: of the engine if that left a turn unfinished, else of the worker.
    """
    sampled = sum(turn.completion_tokens for turn in record.turns)
    turns = sum(turn.node is not None for turn in record.turns)
    if turns >= (config.max_turns or turns + 1) or sampled >= (config.max_tokens or sampled + 1):
        episode = crash.episode
        return Episode(episode.messages, episode.reply, LIMIT, episode.artefacts)
    if record.turns and record.turns[-1].finish_reason in UNFINISHED:
        raise EpisodeFailure("engine", f"a turn ended with {record.turns[-1].finish_reason}; {crash.failure.reason}")
    raise crash


def rollout_of(number: int, task: Task, domain: str, episode: Episode, record: SessionRecord) -> Rollout:
    """Returns the rollout of a session, unscored. Its branches are the record's: each sampled token is trained once."""
    recorded = [turn for turn in record.turns if turn.node is not None]
    truncated = bool(recorded) and recorded[-1].finish_reason == "length"
    return Rollout(number, task, domain, episode, UNSCORED, record.branches, truncated)


def failed(number: int, task: Task, domain: str, failure: Failure) -> Rollout:
    """Returns a rollout without tokens and rewards."""
    return Rollout(number, task, domain, Episode((), Reply(finish_reason="error"), "error"), Outcome.failed(failure))
