"""The filters that a drawn question must pass, and the counts of what each refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agent, Agents, Reply
from arcforge_core.episodes.tools import converse
from arcforge_rl.search.attempts import AttemptRecord, FilterAttempt
from arcforge_rl.search.graph import GraphCorrection
from arcforge_rl.search.questions import SearchQuestion, stated, verdict
from arcforge_rl.search.tools import TOOLS, Library
from arcforge_rl.search.verify import Verifier

CLOSED_TRIES = 8
"""Attempts without tools, as in GLM-5's pipeline; one that is right drops the question."""
MakeAgent = Callable[[str, int], Agent]
"""Makes an agent for try number n at the question with a key."""


@dataclass
class Filters:
    """The three filters, in order.

    Attributes:
        library: that agents search.
        verifier: of both directions.
        closed: agents without tools, `CLOSED_TRIES` per question.
        hasty: agents with `few_calls` calls of tools, `hasty_tries` per question.
        record: of their attempts.
        counts: questions that came to each filter, and that it refused.
        corrections: of the graph, as verification found them.
    """

    library: Library
    verifier: Verifier
    closed: MakeAgent
    hasty: MakeAgent
    record: AttemptRecord = field(default_factory=AttemptRecord)
    few_calls: int = 3
    hasty_tries: int = 8
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    corrections: dict[tuple[str, str, str], GraphCorrection] = field(default_factory=dict)

    async def passes(self, question: SearchQuestion) -> bool:
        """Returns whether no filter refuses a question.

        Raises:
            EpisodeFailure: an agent's server gave no reply.
        """
        self.counts["closed book: asked"] += 1
        if await self._known(question):
            return self._refused("closed book", "answered without tools")
        self.counts["few steps: asked"] += 1
        proposed = await self._proposed(question)
        if proposed is None:
            return self._refused("few steps", f"answered with {self.few_calls} calls")
        self.counts["verification: asked"] += 1
        return self.verified(question, proposed)

    def verified(self, question: SearchQuestion, proposed: set[str]) -> bool:
        """Returns whether verification accepts a question; `proposed` are answers of agents."""
        why, corrections = self.verifier.check(question.part, proposed)
        self.corrections |= {(one.subject, one.label, one.object): one for one in corrections}
        return self._refused("verification", why) if why else True

    def _refused(self, name: str, why: str) -> bool:
        self.counts[f"{name}: refused"] += 1
        self.reasons[f"{name}: {why}"] += 1
        return False

    async def _known(self, question: SearchQuestion) -> bool:
        async def attempt(number: int) -> Reply:
            return await self.closed(question.key, number).reply([Message("user", question.text)])

        return any(one.right for one in await self._all("closed book", question, CLOSED_TRIES, attempt))

    async def _proposed(self, question: SearchQuestion) -> set[str] | None:
        """Returns the titles that hasty agents answered; None if one is right."""

        async def attempt(number: int) -> Reply:
            agents = Agents(self.hasty(question.key, number))
            text = f"{question.text} You may call tools {self.few_calls} times in all."
            use = self.library.use
            episode = await converse(agents, [Message("user", text)], TOOLS, use, max_calls=self.few_calls)
            return replace(episode.reply, finish_reason=episode.finish_reason)

        found = await self._all("few steps", question, self.hasty_tries, attempt)
        return None if any(one.right for one in found) else {one.said for one in found} & self.library.pages.keys()

    async def _all(
        self, name: str, question: SearchQuestion, tries: int, attempt: Callable[[int], Awaitable[Reply]]
    ) -> list[FilterAttempt]:
        """Returns all attempts of a filter, made side by side unless they are on record."""

        async def one(number: int) -> FilterAttempt:
            if found := self.record.find(name, question.text, number):
                return found
            reply = await attempt(number)
            right = verdict(question, reply).value == 1.0
            return self.record.add(name, question.text, number, stated(reply)[0], right)

        return await asyncio.gather(*map(one, range(tries)))
