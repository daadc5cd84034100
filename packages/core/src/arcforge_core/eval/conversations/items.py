"""Held-out records as things to be played: what is given turn by turn, and what judges the answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcforge_core.checkers import build_checker
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.checker import Checker
from arcforge_core.data.conversations.conversation import INTERLEAVED, BadRecord, Check, Conversation
from arcforge_core.data.conversations.parse import parse
from arcforge_core.data.conversations.records import Row, find_files, read_rows
from arcforge_core.data.conversations.rejections import INVALID, Rejection
from arcforge_core.errors import ArcforgeError, DataError


@dataclass(frozen=True)
class Turn:
    """What the assistant is asked before it answers.

    Attributes:
        given: messages of the system and the user.
        expected: the record's answer.
        checker: judges the answer; None where the record names none.
        check: the checker's name and arguments.
    """

    given: tuple[Message, ...]
    expected: str
    checker: Checker | None
    check: Check | None = None


@dataclass(frozen=True)
class Item:
    """One conversation to be played.

    Attributes:
        file, line: where its record stands.
        source: what its figures are counted under.
        record: as it was read.
        conversation: as it was understood.
        turns: at least one.
    """

    file: str
    line: int
    source: str
    record: Mapping[str, Any]
    conversation: Conversation
    turns: tuple[Turn, ...]

    @property
    def key(self) -> str:
        """Names it among all that are played together."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Items:
    """What was found.

    Attributes:
        chosen: in the order of the files.
        read: records of each source, chosen or not.
        rejections: records that cannot be played, each with its reason.
    """

    chosen: list[Item]
    read: dict[str, int]
    rejections: list[Rejection] = field(default_factory=list)


def load_items(files: Sequence[str], field_name: str, limit: int | None = None, seed: int = 0) -> Items:
    """Reads conversations.

    Args:
        files: files and folders of records, as ``data=conversations`` takes them.
        field_name: the option that named them, for errors.
        limit: of each source so many at most, drawn by `seed`; None takes all.
        seed: decides which.

    Raises:
        DataError: a file is not there or cannot be read, or nothing in them can be played.
    """
    found: dict[str, list[Item]] = {}
    rejections: list[Rejection] = []
    for path in find_files(files, field_name):
        for row in read_rows(path):
            try:
                item = make_item(row)
            except BadRecord as error:
                rejections.append(Rejection(row.file, row.line, Path(row.file).stem, INVALID, str(error)))
                continue
            found.setdefault(item.source, []).append(item)
    if not found:
        first = f": {rejections[0].file}:{rejections[0].line}: {rejections[0].reason}" if rejections else ""
        raise DataError(f"{field_name}={list(files)}: holds no conversation that can be played{first}")
    chosen = []
    for source, items in found.items():
        count = len(items) if limit is None else min(limit, len(items))
        numbers = random.Random(f"{seed}/{source}").sample(range(len(items)), count)
        chosen += [items[number] for number in sorted(numbers)]
    return Items(chosen, {source: len(items) for source, items in found.items()}, rejections)


def make_item(row: Row) -> Item:
    """Returns what is played of a record.

    Raises:
        BadRecord: it is no conversation, does not begin with a question, or has a checker that cannot be asked.
    """
    if row.record is None:
        raise BadRecord(row.reason)
    conversation = parse(row.record, "auto", INTERLEAVED, mask_errors=False)
    source = conversation.source or Path(row.file).stem
    return Item(row.file, row.line, source, row.record, conversation, tuple(_turns(conversation)))


def _turns(conversation: Conversation) -> list[Turn]:
    checks = {check.message: check for check in conversation.checks}
    messages, turns, position = conversation.messages, [], 0
    while position < len(messages):
        start = position
        while position < len(messages) and messages[position].role in ("system", "user"):
            position += 1
        given = messages[start:position]
        if not any(message.role == "user" for message in given):
            raise BadRecord(f"messages[{start}]: a turn of the assistant that nobody has asked for")
        start = position
        while position < len(messages) and messages[position].role in ("assistant", "tool"):
            position += 1
        last = position - 1
        if last < start or messages[last].role != "assistant" or messages[last].tool_calls:
            raise BadRecord(f"messages[{last}]: the user gets no answer")
        check = checks.pop(last, None)
        try:
            checker = build_checker(check.name, check.arguments) if check else None
        except ArcforgeError as error:
            raise BadRecord(str(error)) from error
        turns.append(Turn(given, messages[last].content, checker, check))
    if checks:
        raise BadRecord(f"messages[{min(checks)}] has a checker and is not the last answer of its turn")
    return turns
