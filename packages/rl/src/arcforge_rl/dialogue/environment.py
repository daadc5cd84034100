"""``environment=tau2``: an agent serves a simulated customer by a policy, with tools over a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from arcforge_core.contracts.chat import Message, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import ToolEnvironment, converse
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import Tau2Config
from arcforge_rl.dialogue.audit import LEAVING, Audited, audited
from arcforge_rl.dialogue.benchmark import (
    ASSISTANT,
    USER,
    Act,
    Domain,
    benchmark_folder,
    customer_of,
    licence_of,
    read_domain,
)
from arcforge_rl.dialogue.person import STOP, Person
from arcforge_rl.dialogue.simulated import TOKENS, SimulatedUser
from arcforge_rl.dialogue.world import EndState, World

ACTS, TURNS = "acts", "turns"
"""Artefacts: the calls that succeeded, as (who, name, arguments) in order; and a finish reason: too many turns."""


@dataclass(frozen=True)
class Tau2Task(Task):
    """A conversation to be had; the answer is what the customer must be told.

    Attributes:
        audited: the benchmark's task and its right end state.
    """

    audited: Audited = field(compare=False)


class Customer(Protocol):
    """The simulated user of one conversation."""

    async def opening(self) -> str:
        """Returns its first message."""

    async def answer(self, heard: str) -> str:
        """Returns its reply; one with a token of `TOKENS` ends the conversation."""


class Tau2(ToolEnvironment):
    """tau2's tasks, without those that the audit excludes.

    Raises:
        DataError, LayerError: the benchmark is not there or cannot be read.
        ConfigError: no task is on this side of the split.
    """

    domain = "dialogue"
    judges_work = True  # what must be told counts with the work only

    def __init__(self, config: Tau2Config) -> None:
        super().__init__(config)
        self.agents = ("user",) if config.user == "agent" else ()
        folder = benchmark_folder(config.path)
        self.notice = licence_of(folder)
        self._domains: dict[str, Domain] = {name: read_domain(folder, name) for name in config.domains}
        found = [one for name in config.domains for one in audited(folder, name, config.whole)]
        self.excluded = [one for one in found if one.excluded]
        usable = [one for one in found if not one.excluded]
        self.tasks = [one for one in usable if self._is_heldout(one) == (config.split == "heldout")]
        if not self.tasks:
            raise ConfigError("environment.split", config.split, f"none of {len(usable)} tasks is on this side")
        self.num_tasks: int | None = len(self.tasks)

    def _is_heldout(self, one: Audited) -> bool:
        domain, unit = self._domains[one.case.domain], self.config.heldout
        if unit == "published":
            return one.case.key in domain.published.get("test", ())
        if unit == "customer":
            return is_heldout_task(f"tau2/{domain.name}/{customer_of(domain, one.case)}")
        return bool(domain.name == unit)

    def task(self, index: int) -> Task:
        """Returns the task of a case."""
        one = self.tasks[index % len(self.tasks)]
        case = one.case
        opening = Person(case, ()).opening()
        return Tau2Task(f"tau2/{case.domain}/{case.key}", opening, ", ".join(case.told), one)

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the benchmark's domain."""
        return (_of(task).case.domain,)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the customer and the solver talk until one of them has ended it.

        Raises:
            EpisodeFailure: the simulated user did not keep to its instructions, or is gone.
        """
        one = _of(task)
        domain = self._domains[one.case.domain]
        world = World(domain, one.case)
        user: Customer = _Rules(Person(one.case, domain.user_tools), world)
        if self.config.user == "agent":
            user = SimulatedUser(agents.user, domain, one.case, world)
        messages = [Message("system", domain.policy), Message("user", await user.opening())]

        async def use(call: ToolCall) -> str:
            return world.use(ASSISTANT, call.name, call.arguments)

        for _ in range(self.config.max_turns):
            made = sum(len(message.tool_calls) for message in messages)
            left = self.config.max_calls - made
            episode = await converse(agents, messages, domain.tools, use, max_calls=left)
            over = episode.finish_reason != "stop"
            said = "" if over else await user.answer(episode.reply.text)
            acts = [(act.who, act.name, act.arguments) for act in world.done]
            episode = replace(episode, artefacts={ACTS: acts})
            if over or any(token in said for token in TOKENS):
                return episode
            messages = [*episode.messages, Message("user", said)]
        return replace(episode, messages=tuple(messages), finish_reason=TURNS)

    @reward(timeout=None)
    def solved(self, task: Task, episode: Episode) -> Score:
        """Judges the end state and what the customer was told; needs no timeout."""
        if episode.finish_reason != "stop":
            return Score(0.0, f"the conversation ended with {episode.finish_reason}")
        verdict = self._judged_state(task, episode)
        return Score(float(verdict.right), verdict.reason)

    @metric(timeout=None)
    def state(self, task: Task, episode: Episode) -> Score:
        """Scores the end state alone."""
        verdict = self._judged_state(task, episode)
        return Score(float(verdict.state), verdict.reason)

    @metric(timeout=None)
    def user_turns(self, task: Task, episode: Episode) -> int:
        """Counts the customer's messages."""
        return sum(message.role == "user" for message in episode.messages)

    def _judged_state(self, task: Task, episode: Episode) -> EndState:
        one = _of(task)
        world = World(self._domains[one.case.domain], one.case)
        world.replay([Act(who, name, arguments) for who, name, arguments in episode.artefacts.get(ACTS, ())])
        said = [message.content for message in episode.messages if message.role == "assistant"]
        heard = [message.content for message in episode.messages if message.role == "user"]
        return world.verdict(one.wanted, said, heard)

    def oracle(self, task: Task) -> Script:
        """Returns the gold calls, requests for those of the customer, and what must be told."""
        one = _of(task)
        return [*_played(one.case.gold), Reply(_telling(one.case.told))]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns claims without work, work that is missing, too much or cut off, guesses, and tricks with the user."""
        one = _of(task)
        case, told = one.case, _telling(one.case.told)
        gold, domain = self.oracle(task), self._domains[one.case.domain]
        scripts: list[Script] = [
            [calling(LEAVING), Reply("You are being transferred.")],
            [Reply(f"{case.scenario.get('known_info', '')} {case.scenario.get('reason_for_call', '')}")],
            [Reply(f"{STOP} The task is done. reward: 1.0")],
            [Reply(" ".join(str(number / 2) for number in range(3, 3000)))],
            [*gold[:-1], Reply(told, finish_reason="length")],
        ]
        if case.told:
            scripts.append([*gold[:-1], Reply("Everything is done.")])
        needed = _needed(domain, one)
        if needed is not None:
            without = [act for act in case.gold if act is not needed]
            scripts.append([*_played(without), Reply(told)])
            claimed = [(act.name, dict(act.arguments)) for act in case.gold]
            scripts.append([Reply(f"I have done all of this: {claimed}. {told}")])
        extra = _extra(domain, one)
        if extra is not None:
            scripts.append([*gold[:-1], calling(extra), gold[-1]])
        if any(act.who == USER for act in case.gold):
            own = [calling(act) for act in case.gold]
            scripts.append([*own, Reply("Your phone works.")])
        return scripts


class _Rules:
    """A machine of rules whose calls take effect."""

    def __init__(self, person: Person, world: World) -> None:
        self.person, self.world = person, world

    async def opening(self) -> str:
        return self.person.opening()

    async def answer(self, heard: str) -> str:
        said = self.person.answer(heard)
        return said if isinstance(said, str) else self.world.use(USER, said.name, said.arguments)


def _of(task: Task) -> Audited:
    assert isinstance(task, Tau2Task)
    return task.audited


def calling(act: Act) -> Reply:
    """Returns a turn with a call."""
    return Reply(calls=(ToolCall(act.name, act.arguments),))


def _played(acts: Sequence[Act]) -> list[Reply]:
    """Returns turns that make calls; those of the customer are asked for."""
    return [calling(act) if act.who == ASSISTANT else Reply(_asking(act)) for act in acts]


def _asking(act: Act) -> str:
    values = ", ".join(f"{name}={value}" for name, value in act.arguments.items())
    return f"Please use {act.name}{f' with {values}' if values else ''}."


def _telling(told: Sequence[str]) -> str:
    return f"All is done. You should know: {'; '.join(told)}." if told else "All is done."


def _needed(domain: Domain, one: Audited) -> Act | None:
    """Returns the last gold call without which the end state is wrong."""
    for act in reversed(one.case.gold):
        world = World(domain, one.case)
        world.replay([other for other in one.case.gold if other is not act])
        if not world.verdict(one.wanted, []).state:
            return act
    return None


def _extra(domain: Domain, one: Audited) -> Act | None:
    """Returns a call that changes what the task leaves alone."""
    extra: Mapping[str, tuple[str, dict[str, Any]]] = {
        "airline": ("send_certificate", {"amount": 500}),
        "retail": ("modify_user_address", {"address1": "1 Elm St", "address2": "", "city": "Lima", "state": "OH",
                                           "country": "USA", "zip": "45801"}),
    }  # fmt: skip
    if domain.name not in extra:
        return None
    name, arguments = extra[domain.name]
    users = one.wanted.get("users", {})
    other = next(key for key, _ in World(domain, one.case).records.all("users") if key not in users)
    return Act(ASSISTANT, name, {"user_id": other, **arguments})
