"""What all parsers share: pieces in, deltas out, an end behind which nothing is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arcforge_core.chat.answer import Answer
from arcforge_core.chat.pieces import Pieces, Tag
from arcforge_core.contracts.chat import ChatParser, Delta, Message, Parsed, Tool, ToolCall
from arcforge_core.data.tokenizer import Tokenizer

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
NOT_CLOSED, ENDED_BY_CALL = "the reasoning was not closed", "a tool call ended the reasoning"
UNKNOWN_TOOL = "there is no tool"
"""How flaws read, or begin."""


class Parser:
    """A state machine over tags and text; subclasses say what a tag means in the content, and name theirs in `tags`.

    Whole and piecewise parsing are the same code: `finish` only lets go of what was held back.
    """

    tags: tuple[str, ...] = (THINK, END_THINK)

    def __init__(
        self,
        tools: Sequence[Tool] = (),
        *,
        tokenizer: Tokenizer | None = None,
        thinking: bool | None = None,
        ends: Sequence[str] = (),
    ) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.answer = Answer()
        self._ends = frozenset(ends)
        self._pieces = Pieces((*self.tags, *ends), tokenizer)
        self._reasoning = thinking is True
        self._may_open = thinking is not False  # a template may open the reasoning in the prompt, and models repeat it
        self._ended = self._finished = False
        self.cut_off = ""
        """What the end of the completion left open; known after `finish`."""

    @staticmethod
    def normalize(call: ToolCall, tools: Sequence[Tool] = ()) -> ToolCall:
        """Returns a call as it comes back from its rendering."""
        return ToolCall(call.name, json.loads(json.dumps(dict(call.arguments))))

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """Takes sampled ids."""
        return self._take(self._pieces.of_ids(ids))

    def feed_text(self, text: str) -> list[Delta]:
        """Takes sampled text."""
        return self._take(self._pieces.of_text(text))

    def finish(self) -> list[Delta]:
        """Lets go of what was held back; the completion is over."""
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
        """Takes text outside the reasoning."""
        self.answer.add_content(text)

    def tag(self, tag: str) -> None:
        """Takes a tag outside the reasoning."""
        self.answer.add_content(tag)

    def end(self) -> str:
        """Takes the end of a completion outside the reasoning; returns what it left open, in words."""
        return ""

    def add_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Adds a call that is known whole."""
        self.open_call(name)
        self.answer.add_arguments(json.dumps(arguments, ensure_ascii=False))

    def open_call(self, name: str) -> Tool | None:
        """Begins a call and returns its tool; None when there is no such tool."""
        if self.tools and name not in self.tools:
            self.answer.flaw(f"{UNKNOWN_TOOL} {name!r}")
        self.answer.open_call(name)
        return self.tools.get(name)


def parse_whole(parser: ChatParser, ids: Sequence[int]) -> Parsed:
    """Feeds a fresh parser a whole completion."""
    parser.feed(ids)
    parser.finish()
    return parser.parsed


def split_reasoning(message: Message) -> tuple[str, str]:
    """Returns reasoning and content; reasoning that was not given is what the content has before ``</think>``."""
    if message.reasoning is not None or END_THINK not in message.content:
        return message.reasoning or "", message.content
    parts = message.content.split(END_THINK)
    return parts[0].split(THINK)[-1].strip("\n"), parts[-1]
