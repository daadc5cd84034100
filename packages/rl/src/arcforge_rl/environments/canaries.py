"""Prompts whose replies must stay as they are, whatever is trained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agents, Episode, Outcome, Script, Task
from arcforge_core.data.conversations.records import read_rows
from arcforge_core.errors import DataError


@dataclass(frozen=True)
class Canary:
    """A prompt, and expressions that its reply is searched for.

    Attributes:
        prompt: a user's message.
        must, must_not: regular expressions that occur in the reply, or do not; empty for none.
    """

    prompt: str
    must: str = ""
    must_not: str = ""

    def sings(self, reply: str) -> bool:
        """Returns whether a reply is as it must be."""
        found = not self.must or re.search(self.must, reply) is not None
        return found and not (self.must_not and re.search(self.must_not, reply))


def read_canaries(path: Path) -> list[Canary]:
    """Returns the canaries of a jsonl file.

    Raises:
        DataError: it cannot be read, has none, or a record is none.
    """
    canaries = []
    for row in read_rows(path):
        where = f"monitor.canaries={row.file}:{row.line}"
        record = row.record if row.record is not None else {}
        fields = {name: record.get(name, "") for name in ("prompt", "must", "must_not")}
        if row.record is None or not all(isinstance(text, str) for text in fields.values()) or not fields["prompt"]:
            raise DataError(f"{where}: {row.reason or 'must have the texts prompt, must and must_not'}")
        if not fields["must"] and not fields["must_not"]:
            raise DataError(f"{where}: has neither must nor must_not: every reply would do")
        for name in ("must", "must_not"):
            try:
                re.compile(fields[name])
            except re.error as error:
                raise DataError(f"{where}: {name}={fields[name]!r} is no regular expression: {error}") from error
        canaries.append(Canary(**fields))
    if not canaries:
        raise DataError(f"monitor.canaries={path}: has no canary")
    return canaries


class Canaries:
    """One task for each canary, rewarded 1 while it is as it must be; implements `Environment`."""

    domain = "canaries"

    def __init__(self, canaries: Sequence[Canary]) -> None:
        self.canaries = canaries
        self.num_tasks: int | None = len(canaries)

    def task(self, index: int) -> Task:
        """Returns the task of a canary; the answer is its number."""
        number = index % len(self.canaries)
        return Task(f"canary {number}", self.canaries[number].prompt, str(number))

    def domain_of(self, task: Task) -> str:
        """Returns ``canaries``."""
        return self.domain

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Asks once."""
        message = Message("user", task.prompt)
        reply = await agents.solver.reply([message])
        return Episode((message, reply.message), reply, reply.finish_reason)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Searches the reply."""
        canary = self.canaries[int(task.answer)]
        sings = canary.sings(episode.reply.text)
        return Outcome({"reward": float(sings)}, {"reward": "as it must be" if sings else "it has changed"})

    def oracle(self, task: Task) -> Script:
        """There is none: an expression does not say which text it is of."""
        return ()

    def cheats(self, task: Task) -> Sequence[Script]:
        """There are none."""
        return ()
