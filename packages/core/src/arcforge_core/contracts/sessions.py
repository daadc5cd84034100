"""The record of an agent's session at a gateway, as a trainer receives it over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from arcforge_core.contracts.algorithm import Branch
from arcforge_core.errors import DataError

VERSION = 1


@dataclass(frozen=True)
class TurnRecord:
    """One request to sample.

    Attributes:
        dialect: the API that it spoke: ``chat``, ``responses`` or ``messages``.
        node: of the tree of turns, in order of recording; None if nothing was recorded.
        parent: node that it continues; None at the start of a branch.
        drift: how it continues: ``new``, ``clean``, ``realign`` or ``fork``.
        reason: why it is not ``clean``.
        finish_reason: ``stop``, ``length``, ``abort`` (by the engine or the gateway), ``gone`` (by the client) or
            ``error``.
        prompt_tokens, completion_tokens: of the request.
        cached_tokens: prompt tokens read from the engine's prefix cache.
        drafted_tokens, accepted_tokens: drafts that were verified, and those that were accepted.
        masked_tokens: sampled tokens of the parent that a realignment replaced.
    """

    dialect: str
    node: int | None
    parent: int | None
    drift: str
    reason: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    masked_tokens: int = 0


@dataclass(frozen=True)
class SessionRecord:
    """All that was read and sampled in a session.

    Attributes:
        session_id: unique.
        turns: in order of their ends.
        branches: sequences to train on; every sampled token is sampled in one of them at most.
        masked_tokens: sampled tokens that no branch trains, because a realignment replaced them.
        metadata: given by the trainer when it opened the session.
    """

    session_id: str
    turns: Sequence[TurnRecord]
    branches: Sequence[Branch]
    masked_tokens: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns plain data."""
        return {
            "version": VERSION,
            "session_id": self.session_id,
            "turns": [asdict(turn) for turn in self.turns],
            "branches": [{"branch_id": branch.branch_id, **branch.as_row()} for branch in self.branches],
            "masked_tokens": self.masked_tokens,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> SessionRecord:
        """Reads what `as_json` wrote.

        Raises:
            DataError: another version, or a record that is malformed.
        """
        if given.get("version") != VERSION:
            raise DataError(f"a session's record must have version {VERSION}, not {given.get('version')!r}")
        try:
            return cls(
                given["session_id"],
                [TurnRecord(**turn) for turn in given["turns"]],
                [Branch(**branch) for branch in given["branches"]],
                given["masked_tokens"],
                given["metadata"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"a session's record is malformed: {error}") from error
