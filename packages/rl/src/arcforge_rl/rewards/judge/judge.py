"""A generative judge as a component of a reward: a rubric, agents that answer by it, and what their answers come to."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from arcforge_core.contracts.environment import Agent, Episode, EpisodeFailure, Failure, Task
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.judge import JudgeConfig
from arcforge_rl.rewards.anchors import read_replies
from arcforge_rl.rewards.judge.cache import VerdictCache
from arcforge_rl.rewards.judge.question import (
    TIE,
    Abstained,
    NoReadableVerdict,
    Question,
    answered,
    pairwise,
    pointwise,
)
from arcforge_rl.rewards.judge.rubric import read_rubric

T = TypeVar("T")
AgentOf = Callable[[str, str, Mapping[str, Any] | None], Agent]
IdentityOf = Callable[[str], str]
WIN, DRAW, LOSS = 1.0, 0.5, 0.0


class GenerativeJudge:
    """Values in [0, 1]: the rubric's mean, or the share of comparisons that a reply wins, ties by half.

    A verdict that cannot be had is missing. A value is the mean of those that are there, if they are at least half;
    else the rollout is a failure. Equal replies tie without a question, and questions depend on the contents
    alone: neither the order of a group nor that of a pair changes a value.

    Attributes:
        agents: that it asks.
        compares: whether it compares the replies of a task.
        opponents: expert-written replies by prompt.

    Raises:
        ConfigError, DataError: the rubric, the cache or the calibration cannot be used.
    """

    def __init__(self, config: JudgeConfig) -> None:
        if not config.rubric:
            raise ConfigError("options.rubric", "", "must name a file with criteria (docs/general_rl.md)")
        self.config, self.rubric = config, read_rubric(Path(config.rubric))
        self.agents, self.compares = tuple(config.judges), config.mode == "pairwise"
        opponents = config.opponents
        self.opponents = {} if opponents is None else read_replies(opponents, "options.opponents")
        self.cache = VerdictCache(None if config.cache is None else Path(config.cache))
        self._agent_of: AgentOf | None = None
        self._identities: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._room: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._asked: dict[str, asyncio.Future[dict[str, str]]] = {}
        self._why = ""  # of the last verdict that is missing

    def connect(self, agent_of: AgentOf, identity_of: IdentityOf) -> None:
        """Takes the agents of a run.

        Raises:
            ConfigError: the judge is not calibrated, or not good enough.
        """
        self._agent_of, self._identities = agent_of, {name: identity_of(name) for name in self.agents}
        check_calibration(self.config, self.identity)

    @property
    def identity(self) -> str:
        """Identifies whatever its verdicts depend on: rubric, agents and how they are asked."""
        config = self.config
        how = [self.rubric.fingerprint, config.mode, config.most_characters, sorted(self._identities.items())]
        return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:16]

    def take_figures(self) -> dict[str, float]:
        """Returns counts since the last call: requests, verdicts from the cache, those that were asked for again, that
        are missing and that abstain, pairs that changed with their order, and, if there are expert-written opponents,
        replies that were compared with them. Then the budget is whole again."""
        found, self._counts = self._counts, Counter()
        names = ["requests", "cached", "retries", "missing", "abstained", "flips"]
        names += ["against_experts"] if self.opponents else []
        return {name: float(found[name]) for name in names}

    async def measure(self, task: Task, episode: Episode) -> float:
        """Returns the value of a reply by itself.

        Raises:
            EpisodeFailure: more than half of the verdicts are missing.
        """
        return self._mean(await self.values(task, episode))

    async def values(self, task: Task, episode: Episode) -> list[float | None]:
        """Returns the value of each verdict about a reply; None where it is missing."""
        reply = episode.reply.text
        question = pointwise(self.rubric, task.prompt, reply, task.answer, self.config.most_characters)

        async def value(judge: str, sample: int) -> float | None:
            verdict = await self._verdict(judge, sample, question)
            return None if verdict is None else self.rubric.value(verdict)

        return await self._panel(value)

    async def measure_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[float | Failure]:
        """Returns the value of each reply of a task among the others, or against expert-written ones."""
        texts = [episode.reply.text for episode in episodes]
        opponents = self.opponents.get(task.prompt.strip())
        if opponents:
            return await self._against(task, texts, opponents)
        pairs = comparisons(texts, self.config.comparisons)
        scores = dict(zip(pairs, await asyncio.gather(*[self._compared(task, *pair) for pair in pairs]), strict=True))
        found: list[float | Failure] = []
        for text in texts:
            own: list[float | None] = []
            for (one, other), score in scores.items():
                if text in (one, other):
                    seen = score if text == one or score is None else 1.0 - score
                    own += [seen] * (
                        texts.count(other if text == one else one) if self.config.comparisons == "full" else 1
                    )
            if self.config.comparisons == "full":
                own += [DRAW] * (texts.count(text) - 1)
            try:
                found.append(self._mean(own or [DRAW]))
            except EpisodeFailure as error:
                found.append(error.failure)
        return found

    async def _against(self, task: Task, texts: Sequence[str], opponents: Sequence[str]) -> list[float | Failure]:
        """Returns the mean score of each reply against expert-written ones."""
        self._counts["against_experts"] += len(texts)

        async def score(text: str) -> float | Failure:
            scores = [DRAW if text.strip() == other else await self._compared(task, text, other) for other in opponents]
            try:
                return self._mean(scores)
            except EpisodeFailure as error:
                return error.failure

        different = list(dict.fromkeys(texts))
        found = dict(zip(different, await asyncio.gather(*map(score, different)), strict=True))
        return [found[text] for text in texts]

    async def compare(self, task: Task, one: str, other: str) -> list[tuple[float | None, float | None]]:
        """Returns for each verdict the score of `one` when it came first, and when it came second."""
        most = self.config.most_characters
        orders = [pairwise(self.rubric, task.prompt, pair, task.answer, most) for pair in ((one, other), (other, one))]

        async def both(judge: str, sample: int) -> tuple[float | None, float | None]:
            first, second = await asyncio.gather(*[self._verdict(judge, sample, order) for order in orders])
            own, theirs = orders[0].candidates
            values = {own: WIN, theirs: LOSS, TIE: DRAW}
            return tuple(None if verdict is None else values[verdict["better"]] for verdict in (first, second))  # type: ignore[return-value]

        return await self._panel(both)

    async def _compared(self, task: Task, one: str, other: str) -> float | None:
        """Returns the mean score of `one` over both orders; None if the verdicts are missing."""
        values: list[float | None] = []
        for first, second in await self.compare(task, one, other):
            if first is None or second is None:
                values.append(None)
                continue
            self._counts["flips"] += first != second
            values.append(first if first == second else DRAW)
        try:
            return self._mean(values)
        except EpisodeFailure:
            return None

    async def _panel(self, ask: Callable[[str, int], Awaitable[T]]) -> list[T]:
        places = itertools.product(self.config.judges, range(self.config.samples))
        return list(await asyncio.gather(*[ask(judge, sample) for judge, sample in places]))

    def _mean(self, values: Sequence[float | None]) -> float:
        known = [value for value in values if value is not None]
        if not known or 2 * len(known) < len(values):
            count = f"{len(values) - len(known)} of {len(values)} verdicts are missing"
            raise EpisodeFailure("verifier", f"{count}; the last reason: {self._why}")
        return sum(known) / len(known)

    async def _verdict(self, judge: str, sample: int, question: Question) -> dict[str, str] | None:
        """Returns a verdict; None if there is none: the judge failed, abstained, or said nothing that can be read."""
        asked = [(message.role, message.content) for message in question.messages]
        content = json.dumps([self._identities.get(judge, judge), sample, asked])
        key = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
        try:
            known = self.cache.get(key)
            if known is not None:
                self._counts["cached"] += 1
                return answered(question, known)
            return await self._shared(key, lambda: self._ask(judge, question, key))
        except Abstained:
            self._counts["abstained"] += 1
            self._why = f"agents.{judge} cannot tell"
        except EpisodeFailure as error:
            self._counts["missing"] += 1
            self._why = error.failure.reason
        except NoReadableVerdict as error:
            self._counts["missing"] += 1
            self._why = f"agents.{judge}: {error}"
        return None

    async def _shared(self, key: str, ask: Callable[[], Awaitable[dict[str, str]]]) -> dict[str, str]:
        """Asks once where the same question is asked several times at the same time."""
        loop = asyncio.get_running_loop()
        running: Any = self._asked.get(key)
        if running is None or running.get_loop() is not loop:
            running = self._asked[key] = asyncio.ensure_future(ask())
            running.add_done_callback(lambda done: self._asked.pop(key, None))
        found: dict[str, str] = await asyncio.shield(running)
        return found

    async def _ask(self, judge: str, question: Question, key: str) -> dict[str, str]:
        """Asks for a verdict, `attempts` times while it cannot be read."""
        assert self._agent_of is not None
        unreadable = NoReadableVerdict("no verdict")
        for attempt in range(self.config.attempts):
            if self.config.budget and self._counts["requests"] >= self.config.budget:
                accepted = f"the {self.config.budget} requests of a step (options.budget) are used up"
                raise EpisodeFailure("verifier", accepted)
            self._counts["requests"] += 1
            self._counts["retries"] += attempt > 0
            async with self._free():
                agent = self._agent_of(judge, f"{key}/{attempt}", question.schema)
                reply = await agent.reply(question.messages)
            try:
                found = answered(question, reply.text)
            except NoReadableVerdict as error:
                unreadable = error
                continue
            except Abstained:
                self.cache.put(key, reply.text)
                raise
            self.cache.put(key, reply.text)
            return found
        raise unreadable

    def _free(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._room is None or self._room[0] is not loop:
            self._room = loop, asyncio.Semaphore(self.config.concurrency)
        return self._room[1]


def comparisons(texts: Sequence[str], which: str) -> list[tuple[str, str]]:
    """Returns the pairs of different texts to compare, which depend on the set of texts alone.

    Args:
        texts: the replies of a group.
        which: ``linear``: each with the one in the middle by the hashes of their contents; ``full``: each with each.
    """
    ordered = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    if which == "full":
        return list(itertools.combinations(ordered, 2))
    pivot = ordered[len(ordered) // 2]
    return [(text, pivot) for text in ordered if text != pivot]


def check_calibration(config: JudgeConfig, identity: str) -> None:
    """Refuses a judge that was never compared with labels, or that does not agree with them.

    Raises:
        ConfigError: it is one.
    """
    if config.calibration is None:
        if not config.uncalibrated:
            accepted = "must name what arcforge-env calibrate wrote of this judge, or uncalibrated must be true"
            raise ConfigError("options.calibration", None, accepted)
        return
    try:
        found = json.loads(Path(config.calibration).read_text(encoding="utf-8"))
        refused, known = str(found["refused"]), str(found["judge"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("options.calibration", config.calibration, f"cannot be read: {error}") from error
    if known != identity:
        accepted = "is of another judge: rubric, mode, most_characters or an agent has changed; calibrate it again"
        raise ConfigError("options.calibration", config.calibration, accepted)
    if refused:
        raise ConfigError("options.calibration", config.calibration, f"says that this judge is no reward: {refused}")
