"""The environment contract, version 1: frozen typed tasks, a program that plays them, and a verifier that is total.

A task is data. `Environment.run` lets agents work on it and returns an `Episode`; `Environment.score` turns that into
rewards. Any episode gets a score and a reason in bounded time. `arcforge_core.environments.base` has the class that
most environments inherit from, `arcforge_core.environments.plain` the adapter for plain classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.errors import ConfigError

SPLITS = ("train", "heldout")
"""Values of `EnvironmentConfig.split`; no task is on both sides."""


@dataclass(frozen=True)
class Task:
    """One task; environments with more data subclass it.

    Attributes:
        key: stable identifier; tasks of one environment that are equal have the same.
        prompt: what the model sees.
        answer: the reference answer, for the verifier only.
    """

    key: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Reply:
    """What an agent says in one turn.

    Attributes:
        text: the content, without reasoning, calls and tokens that end the turn.
        reasoning: what it thought before; empty for nothing.
        calls: of the tools that it was offered.
        finish_reason: ``stop``; ``length`` for a turn that was cut off at the agent's limit.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"

    @property
    def message(self) -> Message:
        """Returns the message that stands in the conversation."""
        return Message("assistant", self.text, self.reasoning or None, self.calls)


class Agent(Protocol):
    """Answers conversations. One that has no chat template sees the contents of the messages, one behind the other."""

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Reply:
        """Returns the assistant's next turn."""


class Agents:
    """The agents of a rollout by name; ``agents.solver`` is the policy.

    Raises:
        ConfigError: a name is asked for that nobody gave.
    """

    def __init__(self, solver: Agent, **others: Agent) -> None:
        self.solver = solver
        self._others = others

    def __getattr__(self, name: str) -> Agent:
        if name.startswith("_"):  # what copies and pickles ask for
            raise AttributeError(name)
        others = self._others
        if name not in others:
            raise ConfigError("agents", name, f"the agents of this rollout are {', '.join(['solver', *others])}")
        return others[name]


@dataclass(frozen=True)
class Score:
    """What a verifier found.

    Attributes:
        value: in [0, 1].
        reason: in words.
    """

    value: float
    reason: str = ""


@dataclass(frozen=True)
class Episode:
    """What happened with a task.

    Attributes:
        messages: the conversation, the solver's turns included.
        reply: the last one of the solver.
        finish_reason: of that reply, or why the environment went no further: ``calls`` at its limit of turns.
        artefacts: what else the verifier needs, by name; plain data.
    """

    messages: tuple[Message, ...]
    reply: Reply
    finish_reason: str = "stop"
    artefacts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What an episode earned.

    Attributes:
        rewards: by name, each in [0, 1]: ``reward``, which is maximised, the rewards it is the weighted mean of, and
            metrics.
        reasons: by the same names, in words; ``reward`` has those of the rewards below 1 together.
    """

    rewards: Mapping[str, float]
    reasons: Mapping[str, str]

    @property
    def reward(self) -> float:
        """What is maximised."""
        return self.rewards["reward"]


Script = Sequence[Reply]
"""Replies of a solver, turn by turn; behind the last one it says nothing any more."""


class Environment(Protocol):
    """Tasks, how they are played, and their verifier; its target is called as ``target(config)``.

    A solver that says nothing scores 0.

    Attributes:
        domain: what its tasks are about, e.g. ``math``, for figures and balance.
        num_tasks: how many there are; behind the last one `task` begins anew. None: without end.
    """

    domain: str
    num_tasks: int | None

    def task(self, index: int) -> Task:
        """Returns task number `index` >= 0; the same in every process.

        ``split=heldout`` in the config gives tasks that ``split=train`` never gives.
        """

    def domain_of(self, task: Task) -> str:
        """Returns the task's own domain; `domain`, save in mixtures."""

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the agents work on a task, in a bounded number of turns; never raises for what an agent says."""

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns rewards and reasons, in bounded time, and never raises on any episode.

        Raises:
            ConfigError: the verifier cannot work here at all; whatever the episode is.
        """

    def oracle(self, task: Task) -> Script:
        """Returns replies that score 1."""

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns replies that try to game the verifier; each script must score 0."""
