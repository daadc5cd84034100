"""A rollout: a task's prompt goes to an agent, the completion to the verifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from arcforge_core.contracts.engine import Engine, SamplingParams
from arcforge_core.contracts.environment import Environment, Task
from arcforge_core.data.tokenizer import Tokenizer

CHUNK = 64
"""Rollouts handed to the agent at once; what is finished is delivered before the next ones start."""


@dataclass(frozen=True)
class Completion:
    """What an agent answered; ids and log-probs are absent when no model was asked.

    Attributes:
        text: the answer, without the end-of-text token.
        prompt_ids: what the engine was given.
        token_ids: what it generated, the end-of-text token included.
        logprobs: natural-log probability of each of them.
        finish_reason: ``stop`` or ``length``.
        weight_version: weights that generated it.
    """

    text: str
    prompt_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    finish_reason: str | None = None
    weight_version: int | None = None


@dataclass(frozen=True)
class Rollout:
    """One scored completion; number `index` of all, which is also added to the seed."""

    index: int
    task: Task
    completion: Completion
    rewards: Mapping[str, float]


class Agent(Protocol):
    """Answers tasks; `indices` are the numbers of the rollouts."""

    def __call__(self, tasks: Sequence[Task], indices: Sequence[int]) -> list[Completion]:
        """Returns a completion for each task, in order."""


@dataclass(frozen=True)
class ModelAgent:
    """Asks an engine. Rollout n samples from seed + n, whatever shares its batch."""

    engine: Engine
    tokenizer: Tokenizer
    params: SamplingParams

    def __call__(self, tasks: Sequence[Task], indices: Sequence[int]) -> list[Completion]:
        """Encodes the prompts as documents of their own, generates and decodes."""
        prompts = [[self.tokenizer.bos_id, *self.tokenizer.encode(task.prompt)] for task in tasks]
        eos = self.tokenizer.eos_id
        params = [replace(self.params, seed=self.params.seed + n, stop_token_ids=(eos,)) for n in indices]
        return [
            Completion(
                self.tokenizer.decode([i for i in output.token_ids if i != eos]),
                prompt_ids,
                output.token_ids,
                output.logprobs,
                output.finish_reason,
                output.weight_version,
            )
            for prompt_ids, output in zip(prompts, self.engine.generate(prompts, params), strict=True)
        ]


@dataclass(frozen=True)
class OracleAgent:
    """Answers with the environment's own solution."""

    environment: Environment

    def __call__(self, tasks: Sequence[Task], indices: Sequence[int]) -> list[Completion]:
        """Returns the solutions."""
        return [Completion(self.environment.oracle(task)) for task in tasks]


class NoopAgent:
    """Says nothing."""

    def __call__(self, tasks: Sequence[Task], indices: Sequence[int]) -> list[Completion]:
        """Returns empty completions."""
        return [Completion("") for _ in tasks]


def roll_out(environment: Environment, agent: Agent, episodes: int, per_task: int = 1) -> Iterator[Rollout]:
    """Yields `per_task` scored rollouts of each of the tasks 0, 1, ... `episodes` - 1, in order."""
    indices = iter(range(episodes * per_task))
    while chunk := list(islice(indices, CHUNK)):
        tasks = [environment.task(n // per_task) for n in chunk]
        for n, task, completion in zip(chunk, tasks, agent(tasks, chunk), strict=True):
            yield Rollout(n, task, completion, environment.score(task, completion.text))
