"""``toolbox=sandbox``: the tools of the dialogues, run in sandboxes for the conversations that a model plays.

A conversation whose tools write, or run programs, has a sandbox of its own from its first call on. Calls of tools that
only read share one process, because starting Python costs more than all that they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.data.conversations.conversation import BadRecord, Conversation
from arcforge_core.registry import registry
from arcforge_rl.configs import SandboxToolboxConfig
from arcforge_rl.conversations.tools import DESCRIPTIONS, NEED_FILES, READING, use, use_many
from arcforge_rl.sandbox.desk import Desk, Place


class SandboxToolbox:
    """Runs the tools of `arcforge_rl.conversations.tools`.

    Raises:
        ConfigError: programs cannot be run in this sandbox here.
    """

    def __init__(self, config: SandboxToolboxConfig) -> None:
        self._desk = Desk(registry().get("sandbox", config.sandbox).load_schema()())
        self._open: dict[str, Conversation] = {}
        self._places: dict[str, Place] = {}

    def open(self, key: str, conversation: Conversation) -> None:
        """Takes in a conversation; its sandbox begins with its first call."""
        for tool in conversation.tools:
            if tool.name not in DESCRIPTIONS:
                raise BadRecord(f"no tool {tool.name!r} can be run here, only {', '.join(DESCRIPTIONS)}")
            if tool.name in NEED_FILES and conversation.files is None:
                raise BadRecord(f"the tool {tool.name} is about files, and the record has none; make it anew")
        self._open[key] = conversation

    def run(self, calls: Sequence[tuple[str, ToolCall]]) -> list[str]:
        """Runs calls, those that only read at once."""
        results: dict[int, str] = {}
        reading = [n for n, (key, _) in enumerate(calls) if self._only_reads(key)]
        if len(reading) > 1:
            given = [(calls[n][1].name, calls[n][1].arguments, self._open[calls[n][0]].files or {}) for n in reading]
            results = dict(zip(reading, use_many(self._desk, given) or (), strict=False))
            self._desk.clear()
        for n, (key, call) in enumerate(calls):
            if n not in results:
                results[n] = use(self._place(key), call.name, call.arguments)
        return [results[n] for n in range(len(calls))]

    def close(self, key: str) -> None:
        """Ends the conversation's sandbox."""
        del self._open[key]
        if key in self._places:
            self._places.pop(key).clear()

    def __enter__(self) -> Self:
        self._desk.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._desk.__exit__(kind, error, trace)

    def _only_reads(self, key: str) -> bool:
        return all(tool.name in READING for tool in self._open[key].tools)

    def _place(self, key: str) -> Place:
        if key not in self._places:
            self._places[key] = self._desk.place()
            self._places[key].lay(self._open[key].files or {})
        return self._places[key]
