"""The toolbox contract: tool calls of a model are run, for many conversations at a time."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.data.conversations.conversation import Conversation


class Toolbox(Protocol):
    """Runs tool calls; its target is called as ``target(config)``. Used as ``with toolbox:``.

    What one conversation's calls leave behind is there for its later calls, and for no other conversation's.
    """

    def open(self, key: str, conversation: Conversation) -> None:
        """Takes in a conversation that is about to be played, whose calls come under `key`.

        Raises:
            BadRecord: its tools cannot be run as the record has them: unknown ones, or files that are not there.
        """

    def run(self, calls: Sequence[tuple[str, ToolCall]]) -> list[str]:
        """Returns the results, in order; one that failed begins with ``Error``. Never raises for what a call asks.

        Args:
            calls: key of an open conversation, and a call that fits the schema of one of its tools.
        """

    def close(self, key: str) -> None:
        """Forgets a conversation and what its calls have left."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
