"""A record of the agents' attempts at questions, from which a stopped build continues."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from arcforge_core.data.sources.readers import continued
from arcforge_core.errors import ArcforgeError


@dataclass(frozen=True)
class FilterAttempt:
    """One attempt.

    Attributes:
        agent: name of who made it.
        filter: name of the filter.
        question: its text.
        number: of the attempt.
        said: the answer; empty if there was none.
        right: whether it was.
    """

    agent: str
    filter: str
    question: str
    number: int
    said: str
    right: bool


class AttemptRecord:
    """Attempts of earlier builds, and those of this one, a line each.

    Args:
        path: of the file; None keeps no record.
        agent: name of who makes attempts now; those of another one are kept in the file and not found.

    Raises:
        DataError: the file is malformed before its last line, which a killed build may have left unfinished.
        ArcforgeError: it cannot be written.
    """

    def __init__(self, path: Path | None = None, agent: str = "scripted") -> None:
        self.path, self.agent = path, agent
        self._known: dict[tuple[str, str, str, int], FilterAttempt] = {}
        if path is None:
            return
        for one in continued(path, FilterAttempt, "attempt"):
            self._known[one.agent, one.filter, one.question, one.number] = one

    def find(self, name: str, question: str, number: int) -> FilterAttempt | None:
        """Returns an earlier attempt; None if it has not been made."""
        return self._known.get((self.agent, name, question, number))

    def add(self, name: str, question: str, number: int, said: str, right: bool) -> FilterAttempt:
        """Notes an attempt and returns it.

        Raises:
            ArcforgeError: the file cannot be written.
        """
        attempt = FilterAttempt(self.agent, name, question, number, said, right)
        self._known[self.agent, name, question, number] = attempt
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(attempt)) + "\n")
            except OSError as error:
                raise ArcforgeError(f"cannot write {self.path}: {error.strerror}") from error
        return attempt
