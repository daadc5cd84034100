"""The base of all parsers: pieces in, deltas out, nothing read after the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from arcforge_core.chat.answer import Answer
from arcforge_core.chat.pieces import Pieces, Tag
from arcforge_core.contracts.chat import Delta, Message, Parsed, Tool, ToolCall
from arcforge_core.tokenizer.tokenizer import Tokenizer

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
NOT_CLOSED, ENDED_BY_CALL = "the reasoning was not closed", "a tool call ended the reasoning"
UNKNOWN_TOOL = "there is no tool"
"""Messages of flaws, or their beginnings."""


class ParserSettings(TypedDict, total=False):
    """Keyword arguments of every parser; see `ChatParser`."""

    tokenizer: Tokenizer | None
    thinking: bool | None
    ends: Sequence[str]


class Parser:
    """A state machine over tags and text; subclasses list their tags in `tags` and interpret them in the content.

    Whole and streamed completions take the same path: `finish` only flushes text that was held back.
    """

    tags: tuple[str, ...] = (THINK, END_THINK)

    def __init__(self, tools: Sequence[Tool] = (), **settings: Unpack[ParserSettings]) -> None:
        thinking, ends = settings.get("thinking"), settings.get("ends", ())
        self.tools = {tool.name: tool for tool in tools}
        self.answer = Answer()
        self._ends = frozenset(ends)
        self._pieces = Pieces((*self.tags, *ends), settings.get("tokenizer"))
        self._reasoning = thinking is True
        self._may_open = thinking is not False  # a template may open the reasoning in the prompt, and models repeat it
        self._ended = self._finished = False
        self.cut_off = ""
        """The part of the format that the completion left open; set by `finish`."""

    @staticmethod
    def normalize(call: ToolCall, tools: Sequence[Tool] = ()) -> ToolCall:
        """Returns the call as parsing its rendering would give it."""
        return ToolCall(call.name, json.loads(json.dumps(dict(call.arguments))))

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        return self._take(self._pieces.of_ids(ids))

    def feed_text(self, text: str) -> list[Delta]:
        return self._take(self._pieces.of_text(text))

    def finish(self) -> list[Delta]:
        """Ends the completion and flushes text that was held back."""
        deltas = self._take(self._pieces.rest())
        if not self._finished:
            self.cut_off = NOT_CLOSED if self._reasoning else self.end()
            if self.cut_off:
                self.answer.flaw(self.cut_off)
        self._finished = self._ended = True
        return deltas + self.answer.take()

    @property
    def parsed(self) -> Parsed:
        """Returns the sum of all deltas so far."""
        return self.answer.parsed

    def _take(self, pieces: Iterable[Tag | str]) -> list[Delta]:
        for piece in pieces:
            if self._ended:
                break
            if isinstance(piece, Tag):
                self._take_tag(piece.name)
                continue
            self._may_open = self._may_open and not piece.strip()
            if self._reasoning:
                self.answer.add_reasoning(piece)
            else:
                self.text(piece)
        return self.answer.take()

    def _take_tag(self, tag: str) -> None:
        first, self._may_open = self._may_open, False
        if tag in self._ends:
            self._ended = True
        elif tag == THINK and first:
            self._reasoning = True
        elif not self._reasoning:
            self.tag(tag)
        elif tag == END_THINK:
            self._reasoning = False
        elif tag == CALL:
            self._reasoning = False
            self.answer.flaw(ENDED_BY_CALL)
            self.tag(tag)
        else:
            self.answer.add_reasoning(tag)

    def text(self, text: str) -> None:
        """Processes text outside the reasoning."""
        self.answer.add_content(text)

    def tag(self, tag: str) -> None:
        """Processes a tag outside the reasoning."""
        self.answer.add_content(tag)

    def end(self) -> str:
        """Ends a completion outside the reasoning; returns what it left open, in words."""
        return ""

    def add_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Adds a complete call."""
        self.open_call(name)
        self.answer.add_arguments(json.dumps(arguments, ensure_ascii=False))

    def open_call(self, name: str) -> Tool | None:
        """Begins a call and returns its tool, or None if no such tool exists."""
        if self.tools and name not in self.tools:
            self.answer.flaw(f"{UNKNOWN_TOOL} {name!r}")
        self.answer.open_call(name)
        return self.tools.get(name)


def split_reasoning(message: Message) -> tuple[str, str]:
    """Returns reasoning and content; if no reasoning is given, it is the content up to ``</think>``."""
    if message.reasoning is not None or END_THINK not in message.content:
        return message.reasoning or "", message.content
    parts = message.content.split(END_THINK)
    return parts[0].split(THINK)[-1].strip("\n"), parts[-1]
