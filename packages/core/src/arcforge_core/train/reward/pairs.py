"""Reads pairs of replies of which one is preferred, and encodes them as a reward model reads conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arcforge_core.chat.openai import messages_from_openai
from arcforge_core.config.reward import PairsConfig
from arcforge_core.console.progress import say
from arcforge_core.contracts.chat import Message
from arcforge_core.data.conversations.records import Row, find_files, read_rows
from arcforge_core.data.split import RANGE, key_hash
from arcforge_core.errors import ConfigError, DataError

Encode = Callable[[Sequence[Message]], list[int]]
EQUAL = "the replies are equal"


@dataclass(frozen=True)
class Pair:
    """Two conversations that differ in the reply.

    Attributes:
        prompt: messages before the reply; decides the side of the split.
        chosen, rejected: the replies.
        margin: how much better the chosen one is; 1 where that is unknown.
    """

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    margin: float = 1.0

    @property
    def key(self) -> str:
        """The text of the prompt."""
        return "\x1e".join(f"{message.role}\x1f{message.content}" for message in self.prompt)


@dataclass(frozen=True)
class EncodedPair:
    """The tokens of both conversations, of at least one each."""

    chosen: Sequence[int]
    rejected: Sequence[int]
    margin: float

    @property
    def num_tokens(self) -> int:
        """Of both."""
        return len(self.chosen) + len(self.rejected)

    @property
    def longer(self) -> int:
        """Tokens that the chosen conversation has more."""
        return len(self.chosen) - len(self.rejected)


@dataclass(frozen=True)
class Pairs:
    """The encoded pairs of a run by side, and how many records were left out by reason."""

    training: list[EncodedPair]
    heldout: list[EncodedPair]
    left_out: Mapping[str, int]


class _BadPair(ValueError):
    """A record that is no pair."""


def load_pairs(config: PairsConfig, encode: Encode, most: int) -> Pairs:
    """Reads and encodes all pairs.

    Args:
        config: files, names of fields, split.
        encode: conversation to tokens.
        most: tokens of a conversation that count, its last ones.

    Raises:
        DataError: a file cannot be read; there is no pair to train on or to measure; or a record cannot be used and
            ``pairs.on_invalid=fail``.
    """
    sides: tuple[list[EncodedPair], list[EncodedPair]] = [], []
    left_out: Counter[str] = Counter()
    for where, pair in read_pairs(config):
        if isinstance(pair, Pair):
            chosen, rejected = (encode([*pair.prompt, *reply])[-most:] for reply in (pair.chosen, pair.rejected))
            if chosen != rejected:
                held = key_hash(pair.key) < config.heldout * RANGE
                sides[held].append(EncodedPair(chosen, rejected, pair.margin))
                if config.limit is not None and len(sides[0]) + len(sides[1]) >= config.limit:
                    break
                continue
            reason = EQUAL if pair.chosen == pair.rejected else "the replies are equal in the tokens that count"
        else:
            reason = pair
        if config.on_invalid == "fail":
            raise DataError(f"{where}: {reason}; pairs.on_invalid=drop leaves such records out")
        left_out[reason] += 1
    said = "; ".join(f"{count:,} left out: {reason}" for reason, count in left_out.most_common(3))
    for side, found in zip(("train on", "measure"), sides, strict=True):
        if not found and (side == "train on" or config.heldout):
            raise DataError(f"pairs.files={config.files}: no pair to {side}{f' ({said})' if said else ''}")
    if said:
        say(f"pairs: {len(sides[0]) + len(sides[1]):,} read; {said}")
    return Pairs(*sides, left_out)


def read_pairs(config: PairsConfig) -> Iterator[tuple[str, Pair | str]]:
    """Yields the place of each record and its pair, or why it is none."""
    names = {"prompt": config.prompt, "chosen": config.chosen, "rejected": config.rejected, "margin": config.margin}
    for path in find_files(config.files, "pairs.files"):
        rollouts: dict[str, list[dict[str, Any]]] = {}
        for row in read_rows(path):
            where, record = f"{row.file}:{row.line}", row.record
            if record is not None and "group" in record and "rewards" in record:
                if record["rewards"]:
                    rollouts.setdefault(str(record["group"]), []).append(record)
                continue
            try:
                yield where, pair_of(row, names)
            except _BadPair as error:
                yield where, str(error)
        for group, records in rollouts.items():
            yield f"{path}: group {group}", best_and_worst(records)


def pair_of(row: Row, names: Mapping[str, str]) -> Pair:
    """Returns the pair of a record: replies as texts or lists of messages, with the prompt or without.

    Raises:
        _BadPair: it is none.
    """
    record = row.record
    if record is None:
        raise _BadPair(row.reason)
    for name in ("chosen", "rejected"):
        if names[name] not in record:
            raise _BadPair(f"no field {names[name]!r}")
    if record.get("tie") is True:
        raise _BadPair("neither reply is better")
    prompt = messages_of(record.get(names["prompt"], []), "user")
    chosen, rejected = (messages_of(record[names[name]], "assistant") for name in ("chosen", "rejected"))
    if not prompt:  # whole conversations
        shared = 0
        while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
            shared += 1
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    for name, reply in (("chosen", chosen), ("rejected", rejected)):
        if not reply or reply[-1].role != "assistant":
            raise _BadPair(f"{names[name]!r} does not end with an assistant's message")
    margin = record.get(names["margin"], 1.0)
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or margin < 0:
        raise _BadPair(f"{names['margin']!r} must be a number, at least 0")
    return Pair(tuple(prompt), tuple(chosen), tuple(rejected), float(margin))


def messages_of(value: Any, role: str) -> list[Message]:
    """Returns the messages of a field: a text is one of `role`."""
    if isinstance(value, str):
        return [Message(role, value)]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise _BadPair("a field is neither a text nor a list of messages")
    try:
        return messages_from_openai(value)
    except ConfigError as error:
        raise _BadPair(f"a message cannot be read: {error.accepted}") from error


def best_and_worst(rollouts: Sequence[Mapping[str, Any]]) -> Pair | str:
    """Returns the pair of a group of recorded rollouts, with the difference of their rewards as margin."""
    ordered = sorted(rollouts, key=lambda one: float(one["rewards"]["reward"]))
    low, high = ordered[0], ordered[-1]
    margin = float(high["rewards"]["reward"]) - float(low["rewards"]["reward"])
    if margin <= 0:
        return "the rewards of the group are equal"
    try:
        rejected, chosen = (messages_of(one["messages"], "assistant") for one in (low, high))
    except _BadPair as error:
        return str(error)
    first = next((n for n, message in enumerate(chosen) if message.role == "assistant"), len(chosen))
    if not chosen[first:] or chosen[:first] != rejected[:first] or not rejected[first:]:
        return "the rollouts of the group do not begin alike"
    return Pair(tuple(chosen[:first]), tuple(chosen[first:]), tuple(rejected[first:]), margin)
