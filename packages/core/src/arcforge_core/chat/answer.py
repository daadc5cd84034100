"""The parsed answer so far: deltas while it is streamed, a message at the end."""

from __future__ import annotations

import json
from typing import Any

from arcforge_core.contracts.chat import Delta, Message, Parsed, ToolCall


class Stripped:
    """Text without surrounding white space, received in pieces."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._space = ""

    def push(self, text: str) -> str:
        """Returns the part that certainly belongs to the text; trailing white space waits for the next piece."""
        text = self._space + text if self._parts else text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._parts.append(kept)
        return kept

    @property
    def text(self) -> str:
        """Returns the whole text so far."""
        return "".join(self._parts)


class Answer:
    """An assistant's message built from deltas.

    Reasoning and content are stripped of surrounding white space, because templates render them without it.
    """

    def __init__(self) -> None:
        self.flaws: list[str] = []
        self._reasoning, self._content = Stripped(), Stripped()
        self._calls: list[tuple[str, list[str]]] = []
        self._new: list[Delta] = []

    def add_reasoning(self, text: str) -> None:
        if new := self._reasoning.push(text):
            self._new.append(Delta(reasoning=new))

    def add_content(self, text: str) -> None:
        if new := self._content.push(text):
            self._new.append(Delta(content=new))

    def open_call(self, name: str) -> None:
        self._calls.append((name, []))
        self._new.append(Delta(call=len(self._calls) - 1, name=name))

    def add_arguments(self, text: str) -> None:
        """Appends characters to the JSON of the last call's arguments."""
        self._calls[-1][1].append(text)
        self._new.append(Delta(call=len(self._calls) - 1, arguments=text))

    def flaw(self, text: str) -> None:
        """Records a deviation from the format."""
        self.flaws.append(text)

    def take(self) -> list[Delta]:
        """Returns the deltas since the previous `take`."""
        new, self._new = self._new, []
        return new

    @property
    def parsed(self) -> Parsed:
        """Returns the message; a call that is still open has the arguments that are complete."""
        calls = tuple(ToolCall(name, _complete("".join(pieces))) for name, pieces in self._calls)
        message = Message("assistant", self._content.text, reasoning=self._reasoning.text, tool_calls=calls)
        return Parsed(message, tuple(self.flaws))


def _complete(text: str) -> dict[str, Any]:
    """Parses a JSON object; returns {} while it is not closed."""
    try:
        arguments: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return arguments
