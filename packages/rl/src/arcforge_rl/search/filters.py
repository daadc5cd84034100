"""The filters that a drawn question must pass, and the counts of what each refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agent, Agents
from arcforge_core.episodes.tools import converse
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
        counts: questions that came to each filter, and that it refused.
        corrections: of the graph, as verification found them.
    """

    library: Library
    verifier: Verifier
    closed: MakeAgent
    hasty: MakeAgent
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
        for number in range(CLOSED_TRIES):
            reply = await self.closed(question.key, number).reply([Message("user", question.text)])
            if verdict(question, reply).value:
                return True
        return False

    async def _proposed(self, question: SearchQuestion) -> set[str] | None:
        """Returns the titles that hasty agents answered; None if one is right."""
        found: set[str] = set()
        for number in range(self.hasty_tries):
            agents = Agents(self.hasty(question.key, number))
            messages = [Message("user", question.text)]
            episode = await converse(agents, messages, TOOLS, self.library.use, max_calls=self.few_calls)
            if episode.finish_reason == "stop" and verdict(question, episode.reply).value:
                return None
            found.add(stated(episode.reply)[0])
        return found & self.library.pages.keys()
