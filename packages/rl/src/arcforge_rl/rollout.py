"""A rollout: agents play a task, the verifier scores the episode, and what a model sampled is kept turn by turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from arcforge_core.contracts.chat import Message, Tool
from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams
from arcforge_core.contracts.environment import Agent, Agents, Environment, Episode, Outcome, Reply, Task
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.environments.scripted import SILENCE, ScriptedAgent
from arcforge_core.errors import ConfigError

CHUNK = 64
"""Rollouts that are played at once; what is finished is delivered before the next ones start."""


@dataclass(frozen=True)
class Turn:
    """What an engine sampled in one turn.

    Attributes:
        prompt_ids: what it was given.
        token_ids: what it generated, the end-of-text token included.
        logprobs: natural-log probability of each of them.
        finish_reason: ``stop`` or ``length``.
        weight_version: weights that generated it.
    """

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    weight_version: int


@dataclass(frozen=True)
class Player:
    """The solver of one rollout, and the turns that it has sampled so far; none where no model is asked."""

    agent: Agent
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True)
class Rollout:
    """One scored episode; number `index` of all, which is also added to the seed."""

    index: int
    task: Task
    episode: Episode
    outcome: Outcome
    turns: Sequence[Turn] = ()


Players = Callable[[Task, int], Player]
"""Makes the solver of a task and the number of a rollout."""


class Batched:
    """Generates for many conversations at once: all that ask before the event loop comes round share a batch."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: list[tuple[list[int], SamplingParams, asyncio.Future[GenerationOutput]]] = []

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> GenerationOutput:
        """Returns what the engine samples behind a prompt."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        answer: asyncio.Future[GenerationOutput] = loop.create_future()
        self._waiting.append((prompt_ids, params, answer))
        return await answer

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            outputs = self._engine.generate([ids for ids, _, _ in waiting], [params for _, params, _ in waiting])
        except Exception as error:  # goes to those who wait for it
            for _, _, answer in waiting:
                answer.set_exception(error)
            return
        for (_, _, answer), output in zip(waiting, outputs, strict=True):
            answer.set_result(output)


@dataclass(frozen=True)
class ModelAgent:
    """Asks an engine. It has no chat template: the contents of the messages are one document.

    Args:
        sampled: takes the turns.
    """

    batched: Batched
    tokenizer: Tokenizer
    params: SamplingParams
    sampled: list[Turn]

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Reply:
        """Encodes the conversation, generates and decodes.

        Raises:
            ConfigError: there are tools, which need a chat template.
        """
        if tools:
            names = ", ".join(tool.name for tool in tools)
            raise ConfigError("environment", names, "tools need a chat template, and agent=model uses none")
        prompt_ids = [self.tokenizer.bos_id, *self.tokenizer.encode("".join(m.content for m in messages))]
        output = await self.batched.generate(prompt_ids, self.params)
        reason = output.finish_reason
        self.sampled.append(Turn(prompt_ids, output.token_ids, output.logprobs, reason, output.weight_version))
        eos = self.tokenizer.eos_id
        return Reply(self.tokenizer.decode([i for i in output.token_ids if i != eos]), finish_reason=reason)


def model_players(engine: Engine, tokenizer: Tokenizer, params: SamplingParams) -> Players:
    """Returns players that ask an engine. Rollout n samples from seed + n, whatever shares its batch."""
    batched = Batched(engine)

    def player(task: Task, index: int) -> Player:
        turns: list[Turn] = []
        own = replace(params, seed=params.seed + index, stop_token_ids=(tokenizer.eos_id,))
        return Player(ModelAgent(batched, tokenizer, own, turns), turns)

    return player


def oracle_players(environment: Environment) -> Players:
    """Returns players that know the environment's own solution."""
    return lambda task, index: Player(ScriptedAgent(environment.oracle(task)))


def silent_players() -> Players:
    """Returns players that say nothing."""
    return lambda task, index: Player(ScriptedAgent(SILENCE))


def roll_out(environment: Environment, players: Players, episodes: int, per_task: int = 1) -> Iterator[Rollout]:
    """Yields `per_task` scored rollouts of each of the tasks 0, 1, ... `episodes` - 1, in order."""

    async def one(index: int) -> Rollout:
        task = environment.task(index // per_task)
        player = players(task, index)
        episode = await environment.run(task, Agents(player.agent))
        return Rollout(index, task, episode, await environment.score(task, episode), player.turns)

    async def together(chunk: list[int]) -> list[Rollout]:
        return await asyncio.gather(*map(one, chunk))

    indices = iter(range(episodes * per_task))
    while chunk := list(islice(indices, CHUNK)):
        yield from asyncio.run(together(chunk))
