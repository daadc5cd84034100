"""Conversation records as tasks: the user's turns one by one, and the checkers of the answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arcforge_core.checkers import build_checker
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.conversation import INTERLEAVED, BadRecord, Check, Checker, Conversation
from arcforge_core.contracts.environment import Task
from arcforge_core.data.conversations.parse import parse
from arcforge_core.data.conversations.records import Row, find_files, read_rows
from arcforge_core.data.conversations.rejections import INVALID, Rejection
from arcforge_core.errors import ArcforgeError, DataError


@dataclass(frozen=True)
class Question:
    """One turn of the user.

    Attributes:
        given: messages of the system and the user.
        expected: the record's answer.
        check: name and arguments of the checker, or None.
        checker: the checker built from `check`.
    """

    given: tuple[Message, ...]
    expected: str
    check: Check | None = None
    checker: Checker | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ConversationTask(Task):
    """A record; its key is ``file:line``.

    Attributes:
        file, line: location of the record.
        source: group in the figures, and domain of the task.
        conversation: the parsed record.
        questions: at least one.
    """

    file: str
    line: int
    source: str
    conversation: Conversation
    questions: tuple[Question, ...]

    @property
    def checked(self) -> bool:
        """Whether the record has a checker."""
        return any(question.checker for question in self.questions)

    @property
    def side(self) -> str:
        """The text that decides the side of the split."""
        return self.conversation.task or self.key


@dataclass(frozen=True)
class Loaded:
    """The conversations read from files.

    Attributes:
        tasks: in the order of the files.
        read: number of records by source, before the limit.
        rejections: records that cannot be played, each with its reason.
    """

    tasks: list[ConversationTask]
    read: dict[str, int]
    rejections: list[Rejection] = field(default_factory=list)


def load_tasks(files: Sequence[str], field_name: str, limit: int | None = None, seed: int = 0) -> Loaded:
    """Reads conversations.

    Args:
        files: files and folders of records, as for ``data=conversations``.
        field_name: the option that named them, for errors.
        limit: maximum tasks per source, drawn by `seed`; None takes all.
        seed: seed of that draw.

    Raises:
        DataError: a file is missing or unreadable, or no record can be played.
    """
    found: dict[str, list[ConversationTask]] = {}
    rejections: list[Rejection] = []
    for path in find_files(files, field_name):
        for row in read_rows(path):
            try:
                task = make_task(row)
            except BadRecord as error:
                rejections.append(Rejection(row.file, row.line, Path(row.file).stem, INVALID, str(error)))
                continue
            found.setdefault(task.source, []).append(task)
    if not found:
        first = f": {rejections[0].file}:{rejections[0].line}: {rejections[0].reason}" if rejections else ""
        raise DataError(f"{field_name}={list(files)}: holds no conversation that can be played{first}")
    chosen = []
    for source, tasks in found.items():
        count = len(tasks) if limit is None else min(limit, len(tasks))
        numbers = random.Random(f"{seed}/{source}").sample(range(len(tasks)), count)
        chosen += [tasks[number] for number in sorted(numbers)]
    return Loaded(chosen, {source: len(tasks) for source, tasks in found.items()}, rejections)


def make_task(row: Row) -> ConversationTask:
    """Returns the task of a record.

    Raises:
        BadRecord: it is not a conversation, does not begin with a question, or has a checker that cannot be built.
    """
    if row.record is None:
        raise BadRecord(row.reason)
    conversation = parse(row.record, "auto", INTERLEAVED, mask_errors=False)
    source = conversation.source or Path(row.file).stem
    questions = tuple(_questions(conversation))
    prompt = "\n\n".join(message.content for message in questions[0].given)
    key, answer = f"{row.file}:{row.line}", questions[-1].expected
    return ConversationTask(key, prompt, answer, row.file, row.line, source, conversation, questions)


def _questions(conversation: Conversation) -> list[Question]:
    checks = {check.message: check for check in conversation.checks}
    messages, questions, position = conversation.messages, [], 0
    while position < len(messages):
        start = position
        while position < len(messages) and messages[position].role in ("system", "user"):
            position += 1
        given = messages[start:position]
        if not any(message.role == "user" for message in given):
            raise BadRecord(f"messages[{start}]: an assistant turn without a question")
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
        questions.append(Question(given, messages[last].content, check, checker))
    if checks:
        raise BadRecord(f"messages[{min(checks)}] has a checker and is not the last answer of its turn")
    return questions
