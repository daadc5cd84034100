"""Reads expert-written replies, and refuses those to held-out tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.contracts.environment import Environment
from arcforge_core.data.conversations.parse import parse
from arcforge_core.data.conversations.records import Row, find_files, read_rows
from arcforge_core.errors import ConfigError, DataError


def conversation_of(row: Row) -> Conversation:
    """Returns the conversation of a record.

    Raises:
        BadRecord: it is none, or ends without a reply.
    """
    record: Any = row.record
    if record is None:
        raise BadRecord(row.reason)
    if "prompt" in record or "reply" in record:
        prompt, reply = record.get("prompt"), record.get("reply")
        if not isinstance(prompt, str) or not isinstance(reply, str) or not prompt.strip() or not reply.strip():
            raise BadRecord("prompt and reply must be texts")
        return Conversation((Message("user", prompt), Message("assistant", reply)))
    found = parse(record, "auto", "interleaved", mask_errors=True)
    if not any(message.role == "assistant" and message.trained for message in found.messages):
        raise BadRecord("no reply of an assistant")
    return found


def read_replies(path: str, field: str) -> dict[str, tuple[str, ...]]:
    """Returns the replies of a file by their prompts, without surrounding space.

    Args:
        path: of conversations of one prompt and one reply.
        field: option that named the file.

    Raises:
        DataError: it cannot be read, has none, or a record is none.
    """
    found: dict[str, tuple[str, ...]] = {}
    for file in find_files([str(Path(path))], field):
        for row in read_rows(file):
            try:
                messages = conversation_of(row).messages
                if [message.role for message in messages] != ["user", "assistant"]:
                    raise BadRecord("must be a prompt and one reply")
            except BadRecord as error:
                raise DataError(f"{field}={row.file}:{row.line}: {error}") from error
            prompt, reply = (message.content.strip() for message in messages)
            found[prompt] = (*found.get(prompt, ()), reply)
    if not found:
        raise DataError(f"{field}={path}: has no reply")
    return found


def prompts_of(environment: Environment, count: int) -> dict[str, int]:
    """Returns the numbers of an environment's first tasks by their prompts, without surrounding space."""
    most = count if environment.num_tasks is None else min(count, environment.num_tasks)
    return {environment.task(number).prompt.strip(): number for number in range(most)}


def check_unseen(prompts: Iterable[str], heldout: Mapping[str, int], field: str, where: str) -> None:
    """Refuses prompts of held-out tasks.

    Args:
        prompts: of expert-written replies.
        heldout: see `prompts_of`.
        field: option that named the replies.
        where: place of the replies.

    Raises:
        ConfigError: one is that of a held-out task.
    """
    for prompt in prompts:
        number = heldout.get(prompt.strip())
        if number is not None:
            raise ConfigError(field, where, f"has the prompt of held-out task {number}: {prompt.strip()[:60]!r}")
