"""Agents that questions must withstand: one that guesses from titles, and one that searches once or twice."""

from __future__ import annotations

import re
from collections.abc import Sequence

from arcforge_core.contracts.chat import ChatOptions, Message, Tool, ToolCall
from arcforge_core.contracts.environment import Reply
from arcforge_rl.search.graph import Graph

QUOTED = re.compile(r"“([^”]*)”")
HIT = re.compile(r"^(\S.*)\n    ", re.MULTILINE)
PART = re.compile(r"[a-z]{3,}")


class Guesser:
    """Knows the titles, their kinds and how often pages name them; guesses without tools.

    Args:
        graph: of the corpus.
        number: of its guess: the best, the second best, ...
    """

    def __init__(self, graph: Graph, number: int) -> None:
        self.graph, self.number = graph, number

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Names a title of the kind that the question asks for, by the words that it shares with the question."""
        asked = messages[0].content.lower()
        kinds = sorted(self.graph.kinds, key=lambda kind: (asked.find(kind) % (len(asked) + 1), kind))
        words = set(PART.findall(asked))
        titles = sorted(self.graph.kinds[kinds[0]]) if kinds else []
        titles.sort(key=lambda one: (-len(words & set(PART.findall(one.lower()))), -self.graph.degree[one]))
        return Reply(f"Answer: {titles[self.number % len(titles)]}" if titles else "")


class HastySearcher:
    """Searches once, opens a page, and answers with a title that it has seen.

    Args:
        number: of its way: a search for the whole question or for its quoted words, and an answer of the first or
            second hit, or of a name on the first hit's page.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Searches, opens the first hit, answers."""
        question, results = messages[0].content, [one.content for one in messages if one.role == "tool"]
        if not results:
            quoted = " ".join(QUOTED.findall(question))
            return _call("search", query=quoted if self.number % 2 and quoted else question)
        hits = HIT.findall(results[0] + "\n    ")
        if not hits:
            return Reply("I found nothing.")
        if len(results) == 1:
            return _call("open", page=hits[0])
        rest = self.number // 2
        seen = [
            value for line in results[1].splitlines()[1:] if ": " in line for value in line.split(": ")[-1].split("; ")
        ]
        choices = [*hits[:2], *seen[:1], *seen[-1:]]
        return Reply(f"Answer: {choices[rest % len(choices)]}")


def _call(name: str, **arguments: str) -> Reply:
    return Reply(calls=(ToolCall(name, arguments),))
