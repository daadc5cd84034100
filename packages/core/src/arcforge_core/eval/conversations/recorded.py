"""``toolbox=recorded``: tools that know the calls of the record and their results, and run nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from arcforge_core.configs import RecordedToolboxConfig
from arcforge_core.contracts.chat import ToolCall
from arcforge_core.data.conversations.conversation import Conversation

UNKNOWN = "Error: this call is not in the record"


class RecordedToolbox:
    """Answers a call as the record does, whenever it comes; any other is an error."""

    def __init__(self, config: RecordedToolboxConfig) -> None:
        self._results: dict[str, dict[str, str]] = {}

    def open(self, key: str, conversation: Conversation) -> None:
        """Reads the calls and their results."""
        results: dict[str, str] = {}
        waiting: list[ToolCall] = []
        for message in conversation.messages:
            if message.role == "tool" and waiting:
                results[_written(waiting.pop(0))] = message.content
            elif message.role == "assistant":
                waiting = list(message.tool_calls)
        self._results[key] = results

    def run(self, calls: Sequence[tuple[str, ToolCall]]) -> list[str]:
        """Returns the recorded results."""
        return [self._results[key].get(_written(call), UNKNOWN) for key, call in calls]

    def close(self, key: str) -> None:
        """Forgets the record."""
        del self._results[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._results.clear()


def _written(call: ToolCall) -> str:
    return json.dumps([call.name, dict(call.arguments)], sort_keys=True)
