"""The environment contract, version 2: frozen typed tasks, a program that plays them, and a verifier that is total.

A task is data. `Environment.run` lets agents work on it and returns an `Episode`; `Environment.score` turns that into
rewards. Any episode gets a score and a reason in bounded time, or a `Failure` if the infrastructure broke.
`arcforge_core.episodes.base` has the class that most environments inherit from, `arcforge_core.episodes.plain` the
adapter for plain classes. Version 2 adds `Outcome.failure`; an environment of version 1 works unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from arcforge_core.contracts.chat import ChatOptions, Message, Parsed, Tool, ToolCall
from arcforge_core.errors import ArcforgeError, ConfigError

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
        finish_reason: ``stop``; ``length`` for a turn that was cut off at the agent's limit; ``abort`` or ``error`` if
            the engine did not finish it, which makes the rollout a failure.
        parsed: the whole message as the chat template's parser read it, calls of a cut-off turn included, and its
            flaws; None for agents without a chat template, and for a turn without room for a token.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    parsed: Parsed | None = field(default=None, compare=False)

    @property
    def message(self) -> Message:
        """The message that joins the conversation."""
        return Message("assistant", self.text, self.reasoning or None, self.calls)


class Agent(Protocol):
    """Answers conversations. One that has no chat template sees the contents of the messages, one after the other."""

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Returns the assistant's next turn.

        Args:
            messages: the conversation so far.
            tools: the tools that the agent may call.
            options: how to render the conversation; None: the agent's own way.
        """


class Agents:
    """The agents of a rollout by name; ``agents.solver`` is the policy.

    Args:
        solver: the policy.
        away: see the attribute.
        others: further agents.

    Attributes:
        away: ``with agents.away():`` marks a wait for anything but an agent, as for a tool: the engine does not wait
            for this rollout meanwhile.

    Raises:
        ConfigError: the rollout has no agent of that name.
    """

    def __init__(
        self, solver: Agent, *, away: Callable[[], AbstractContextManager[None]] = nullcontext, **others: Agent
    ) -> None:
        self.solver, self.away = solver, away
        self._others = others

    def with_solver(self, solver: Agent) -> Agents:
        """Returns the same agents with another solver."""
        return Agents(solver, away=self.away, **self._others)

    def __getattr__(self, name: str) -> Agent:
        if name.startswith("_"):  # what copies and pickles ask for
            raise AttributeError(name)
        others = self._others
        if name not in others:
            raise ConfigError("agents", name, f"the agents of this rollout are {', '.join(['solver', *others])}")
        return others[name]


@dataclass(frozen=True)
class Score:
    """The verdict of a verifier.

    Attributes:
        value: in the reward's scale, [0, 1] unless it declares another; any finite number for a metric.
        reason: in words.
        raw: the number that the verifier returned, once `value` was converted from another scale to [0, 1].
    """

    value: float
    reason: str = ""
    raw: float | None = None


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


def agent_reward(agent: str) -> str:
    """Returns the name of the reward that a trained agent has of its own."""
    return f"reward_{agent}"


FAILURES = ("sandbox", "engine", "verifier", "worker", "cancelled", "environment", "user")
"""Kinds of failures: the sandbox broke; the engine aborted or raised; a verifier's process died or a judge gave no
verdict that can be read; a worker process died; the rollout was cancelled; the environment's own code raised; a
simulated user did not keep to its instructions."""


@dataclass(frozen=True)
class Failure:
    """Why a rollout could not be finished or scored; never the agent's own doing.

    Attributes:
        kind: one of `FAILURES`.
        reason: in words.
    """

    kind: str
    reason: str


class EpisodeFailure(ArcforgeError):
    """Raised by an environment, a tool or a verifier when the infrastructure broke: the rollout is a `Failure`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.failure = Failure(kind, reason)


class NoVerdict(EpisodeFailure):
    """Raised by a verifier whose judge did not answer, or whose answer is no verdict.

    It is asked once more; then the rollout is a failure of the kind ``verifier``, never a reward of 0.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("verifier", reason)


@dataclass(frozen=True)
class Outcome:
    """The rewards of an episode.

    Attributes:
        rewards: by name: ``reward``, which is maximised, the rewards that it is made of, as they are used, and metrics,
            which may be any finite number.
        reasons: by the same names, in words; ``reward`` has those of the rewards below 1 together.
        failure: why there are no rewards: the infrastructure broke. Nothing is learnt from such a rollout.
        raw: numbers that verifiers returned, by name, where another value is used, because a reward has a scale of its
            own or is compared within a group.
    """

    rewards: Mapping[str, float]
    reasons: Mapping[str, str]
    failure: Failure | None = None
    raw: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def failed(cls, failure: Failure) -> Outcome:
        """Returns the outcome of a rollout that could not be finished or scored."""
        return cls({}, {}, failure)

    @property
    def reward(self) -> float:
        """The number that is maximised.

        Raises:
            ArcforgeError: the rollout failed.
        """
        if self.failure is not None:
            raise ArcforgeError(f"a failed rollout has no reward ({self.failure.kind}: {self.failure.reason})")
        return self.rewards["reward"]


Script = Sequence[Reply]
"""Replies of a solver, turn by turn; after the last one it says nothing."""


class Environment(Protocol):
    """Tasks, how they are played, and their verifier; its target is called as ``target(config)``.

    A solver that says nothing scores 0. An environment may also have ``score_group(task, episodes)``, which returns the
    outcomes of a task's episodes together, in order, and ``compares = True`` where they depend on each other. Then a
    group is judged when all of its rollouts have been played; `judge_group` of `episodes.rollout` asks for either. One
    that needs further agents names them in ``agents``, for example ``("user",)``. ``stage_of(task)`` may name the stage
    of training that a task comes from, ``labels_of(task)`` what it is counted under besides its domain.

    Attributes:
        domain: what its tasks are about, e.g. ``math``, for figures and balance.
        num_tasks: how many there are; after the last one `task` restarts at the first. None: without end.
    """

    domain: str
    num_tasks: int | None

    def task(self, index: int) -> Task:
        """Returns task number `index` >= 0; the same in every process.

        ``split=heldout`` in the config gives tasks that ``split=train`` never gives.
        """

    def domain_of(self, task: Task) -> str:
        """Returns the task's own domain; `domain`, except in mixtures."""

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the agents work on a task, in a bounded number of turns; never raises for what an agent says."""

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Returns rewards and reasons, in bounded time, or a failure of the infrastructure, for any episode.

        Raises:
            ConfigError: the verifier cannot work on this machine, whatever the episode is.
        """

    def oracle(self, task: Task) -> Script:
        """Returns replies that score 1."""

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns replies that try to game the verifier; each script must score 0."""
