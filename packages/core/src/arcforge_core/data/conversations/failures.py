"""Finds failed tool calls: their messages stay in the conversation and out of the loss (spec 6).

The paper does not describe how it finds erroneous segments. Here a result counts as an error by its mark, or else by
its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arcforge_core.contracts.chat import Message

MARKS = ("is_error", "isError", "error")
FAILED_STATUS = ("error", "failed", "failure")
READS_AS_FAILURE = re.compile(
    r"""\s*(
        Traceback\ \(most\ recent\ call\ last\)
        | [A-Za-z_.]*(Error|Exception)\b\s*(:|$)          # ValueError: ..., Error: ...
        | (error|fatal|failed|failure)\s*[:!]
        | [^\n]+:\ (command\ not\ found|No\ such\ file\ or\ directory|Permission\ denied)\s*\Z   # one line of a shell
        | exit\ (code|status):?\ (?!0\b)\d+
    )""",
    re.VERBOSE | re.IGNORECASE,
)
"""Matches the beginning of the result of a failed call."""


def failed(messages: Sequence[Message], records: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Yields the index of every assistant message with at least one failed call.

    Args:
        messages: the conversation.
        records: the original messages, with their marks.
    """
    caller = None
    for index, message in enumerate(messages):
        if message.role == "assistant":
            caller = index if message.tool_calls else None
        elif message.role != "tool":
            caller = None
        elif caller is not None and is_failure(message.content, records[index]):
            yield caller


def is_failure(content: str, record: Mapping[str, Any]) -> bool:
    """Whether a tool's result is an error: the first mark on its message decides, otherwise its text."""
    for mark in MARKS:
        if mark in record:
            return bool(record[mark])
    if isinstance(record.get("status"), str):
        return record["status"].lower() in FAILED_STATUS
    if content.lstrip().startswith("{"):
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            return False
        return _says_failure(value) if isinstance(value, dict) else False
    return READS_AS_FAILURE.match(content) is not None


def _says_failure(value: Mapping[str, Any]) -> bool:
    """Whether a JSON result contains an error."""
    if any(value.get(name) for name in MARKS) or value.get("success") is False or value.get("ok") is False:
        return True
    if str(value.get("status", "")).lower() in FAILED_STATUS:
        return True
    code = next((value[name] for name in ("exit_code", "returncode", "return_code") if name in value), 0)
    return isinstance(code, int) and code != 0
