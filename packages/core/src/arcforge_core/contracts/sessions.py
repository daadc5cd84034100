"""The record of an agent's session at a gateway, as a trainer receives it over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from arcforge_core.contracts.algorithm import COLUMNS, Array, Branch
from arcforge_core.contracts.experts import experts_json, experts_of
from arcforge_core.errors import DataError

VERSION = 2


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
class SessionPart:
    """The tokens of one turn, those read and those sampled after them.

    Attributes:
        parent: index of the part whose sequence this one continues; None at the start of one.
        keep: number of tokens at the beginning of the parent's sequence that are the beginning of this one's.
        tokens: after them.
    """

    parent: int | None
    keep: int
    tokens: Branch


def branches_of(parts: Sequence[SessionPart], leaves: Sequence[int], name: str = "") -> list[Branch]:
    """Returns the sequence of each leaf, in order. A token that several share is sampled in the first of them.

    Args:
        parts: parents before their children.
        leaves: indices of the parts that end sequences.
        name: of the branches, before their numbers.
    """
    found: list[Branch] = []
    owned = [0] * len(parts)
    for leaf in leaves:
        path = path_of(parts, leaf)
        columns: list[list[Array]] = [[], [], [], []]
        for index, count in path:
            tokens, first = parts[index].tokens, owned[index]
            mine = tokens.sampled[:count].copy()
            mine[:first] = False
            for column, values in zip(columns, (tokens.ids, mine, tokens.logprobs, tokens.versions), strict=True):
                column.append(values[:count])
            owned[index] = max(first, count)
        found.append(Branch(f"{name}{len(found)}", *(np.concatenate(column) for column in columns)))
        _route(found[-1], [(parts[index].tokens, count) for index, count in path])
    return found


def _route(branch: Branch, path: Sequence[tuple[Branch, int]]) -> None:
    """Gives a branch the experts of its parts, up to the first token whose experts are not known."""
    for tokens, count in path:
        if tokens.experts is None:
            return
        branch.route(tokens.experts[:count])
        if tokens.routed < count:
            return


def path_of(parts: Sequence[SessionPart], leaf: int) -> list[tuple[int, int]]:
    """Returns the parts of a sequence from its start, each with the number of its tokens that are in it."""
    path: list[tuple[int, int]] = []
    index: int | None = leaf
    end = parts[leaf].keep + len(parts[leaf].tokens)
    while index is not None:
        part = parts[index]
        if end > part.keep:
            path.append((index, end - part.keep))
        end, index = min(end, part.keep), part.parent
    return path[::-1]


def uncovered(parts: Sequence[SessionPart], leaves: Sequence[int]) -> int:
    """Returns the number of sampled tokens that are in no sequence of `leaves`."""
    reached = [0] * len(parts)
    for leaf in leaves:
        reached[leaf] = len(parts[leaf].tokens)
    for part in reversed(parts):
        if part.parent is not None:
            reached[part.parent] = max(reached[part.parent], part.keep - parts[part.parent].keep)
    return sum(int(part.tokens.sampled[count:].sum()) for part, count in zip(parts, reached, strict=True))


@dataclass(frozen=True)
class SessionRecord:
    """All that was read and sampled in a session. Its size is that of its turns, however many sequences share them.

    Attributes:
        session_id: unique.
        turns: in order of their ends.
        parts: tokens of the turns that have a node, in order of `TurnRecord.node`.
        leaves: indices of the parts that end `branches`.
        masked_tokens: sampled tokens that no branch trains, because a realignment replaced them.
        metadata: given by the trainer when it opened the session.
    """

    session_id: str
    turns: Sequence[TurnRecord]
    parts: Sequence[SessionPart]
    leaves: Sequence[int]
    masked_tokens: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def branches(self) -> Sequence[Branch]:
        """Sequences to train on; every sampled token is sampled in one of them at most."""
        return branches_of(self.parts, self.leaves, f"{self.session_id}.")

    def as_json(self) -> dict[str, Any]:
        """Returns plain data."""
        return {
            "version": VERSION,
            "session_id": self.session_id,
            "turns": [asdict(turn) for turn in self.turns],
            "parts": [_row(part) for part in self.parts],
            "leaves": [*self.leaves],
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
            parts = _parts(given["parts"])
            turns = [TurnRecord(**turn) for turn in given["turns"]]
            leaves = [range(len(parts))[leaf] for leaf in given["leaves"]]
            return cls(given["session_id"], turns, parts, leaves, given["masked_tokens"], given["metadata"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"a session's record is malformed: {error}") from error


def _row(part: SessionPart) -> dict[str, Any]:
    experts = {} if part.tokens.experts is None else {"experts": experts_json(part.tokens.experts)}
    return {"parent": part.parent, "keep": part.keep, **part.tokens.as_row(), **experts}


def _parts(rows: Sequence[Mapping[str, Any]]) -> list[SessionPart]:
    parts: list[SessionPart] = []
    ends: list[int] = []
    for number, row in enumerate(rows):
        parent, keep = row["parent"], row["keep"]
        if not 0 <= keep <= (0 if parent is None else ends[range(number)[parent]]):
            raise ValueError(f"part {number} keeps {keep} tokens")
        columns: list[Array] = [np.asarray(row[name], dtype) for name, dtype in COLUMNS.items()]
        parts.append(SessionPart(parent, keep, Branch(str(number), *columns)))
        if "experts" in row:
            parts[-1].tokens.route(experts_of(row["experts"]))
        ends.append(keep + len(parts[-1].tokens))
    return parts
