"""Tool calls as GLM-4.7 and GLM-5 write them (spec 5.3).

    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>

A value may contain anything, these tags included: it ends at the last ``</arg_value>`` before the next ``<arg_key>`` or
the end of the call. Text after a closing tag is therefore held back until its meaning is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Unpack

from arcforge_core.chat.parser import CALL, END_CALL, END_THINK, THINK, Parser, ParserSettings
from arcforge_core.chat.values import permitted_types, read_value, write_value
from arcforge_core.configs import GlmParserConfig
from arcforge_core.contracts.chat import Tool, ToolCall

KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"
GAP = re.compile(r"(?:\s|\\n)*")
"""The text that models put around names and values: white space, or a newline that was escaped twice."""

NOT_CLOSED = "a tool call was not closed"


class State(Enum):
    """Position of the parser in the format."""

    CONTENT = auto()
    NAME = auto()
    KEY = auto()
    GAP = auto()
    """After a key, before its value."""
    VALUE = auto()
    AFTER = auto()
    """After a closing tag that may have been part of the value."""


class GlmParser(Parser):
    """Reads GLM's format. Streams values of string parameters as they arrive, other values when they are complete."""

    tags = (THINK, END_THINK, CALL, END_CALL, KEY, END_KEY, VALUE, END_VALUE)

    def __init__(self, config: GlmParserConfig, tools: Sequence[Tool] = (), **settings: Unpack[ParserSettings]) -> None:
        super().__init__(tools, **settings)
        self.config = config
        self._state = State.CONTENT
        self._held: list[str] = []
        """Characters whose meaning is undecided."""
        self._value: list[str] = []
        """The value so far, for parameters that are converted when complete."""
        self._schema: Mapping[str, Any] = {}
        self._key = ""
        self._streams = False
        self._arguments = 0

    @staticmethod
    def normalize(call: ToolCall, tools: Sequence[Tool] = ()) -> ToolCall:
        """Returns the call as parsing its rendering would give it: arguments typed by the tool's schema."""
        name = _name(call.name, {tool.name for tool in tools})
        root: Mapping[str, Any] = next((tool.parameters for tool in tools if tool.name == name), {})
        texts = {key.strip(): write_value(value) for key, value in call.arguments.items()}
        return ToolCall(name, {key: read_value(text, _parameter(root, key), root) for key, text in texts.items()})

    def text(self, text: str) -> None:
        """Processes text outside the reasoning."""
        if self._state is State.CONTENT:
            self.answer.add_content(text)
        elif self._state is State.VALUE:
            self._add_value(text)
        else:
            self._held.append(text)
            if self._state is State.GAP:
                self._try_value_without_its_tag()

    def tag(self, tag: str) -> None:
        """Processes a tag outside the reasoning."""
        match self._state, tag:
            case State.CONTENT, "<tool_call>":
                self._go(State.NAME)
            case State.CONTENT, _:
                self.answer.add_content(tag)
            case State.NAME, "<arg_key>" | "</tool_call>" if not self._whole().strip():
                self.answer.flaw("a tool call has no name")
                self._give_up(tag)
            case State.NAME, "<arg_key>":
                self._open_call()
                self._go(State.KEY)
            case State.NAME, "</tool_call>":
                self._open_call()
                self._close_call()
            case State.NAME, "<tool_call>":
                self.answer.flaw(NOT_CLOSED)
                self._give_up("")
                self._go(State.NAME)
            case State.KEY, "</arg_key>":
                self._key = self._whole().strip()
                self._go(State.GAP)
            case State.KEY | State.GAP, "</tool_call>":
                self.answer.flaw("an argument has no value")
                self._close_call()
            case State.GAP, "<arg_key>":
                self.answer.flaw("an argument has no value")
                self._go(State.KEY)
            case State.GAP, "<arg_value>":
                self._begin_value()
            case State.GAP, _:
                self._begin_value_without_its_tag()
                self.tag(tag)
            case State.VALUE, "</arg_value>":
                self._go(State.AFTER)
            case State.VALUE, _:
                self._add_value(tag)
            case State.AFTER, "</arg_value>":  # the previous one was part of the value
                self._add_value(END_VALUE + self._whole())
                self._go(State.AFTER)
            case State.AFTER, "<arg_key>":
                self._end_value()
                self._go(State.KEY)
            case State.AFTER, "</tool_call>":
                self._end_value()
                self._close_call()
            case State.AFTER, "<tool_call>" if not self._whole().strip():
                self.answer.flaw(NOT_CLOSED)
                self._end_value()
                self._close_call()
                self._go(State.NAME)
            case _:
                self._held.append(tag)

    def end(self) -> str:
        """Ends the completion: an unfinished call keeps the arguments parsed so far."""
        if self._state is State.CONTENT:
            return ""
        if self._state is State.NAME:
            self._give_up("")
        else:
            if self._state is State.VALUE:
                self._go(State.AFTER)
            if self._state is State.AFTER:
                self._end_value()
            self._close_call()
        return NOT_CLOSED

    def _go(self, state: State) -> None:
        self._state = state
        self._held = []

    def _whole(self) -> str:
        return "".join(self._held)

    def _give_up(self, tag: str) -> None:
        """Treats an apparent call as content."""
        self.answer.add_content(CALL + self._whole() + tag)
        self._go(State.CONTENT)

    def _open_call(self) -> None:
        tool = self.open_call(_name(self._whole(), self.tools))
        self._schema = {} if tool is None else tool.parameters
        self._arguments = 0
        self.answer.add_arguments("{")

    def _close_call(self) -> None:
        self.answer.add_arguments("}")
        self._go(State.CONTENT)

    def _try_value_without_its_tag(self) -> None:
        held = self._whole()
        rest = held[_end_of_gap(held) :]
        if rest not in ("", "\\"):  # a backslash may become an escaped newline, which belongs to the gap
            self._begin_value_without_its_tag()

    def _begin_value_without_its_tag(self) -> None:
        held = self._whole()
        self.answer.flaw(f"the value of {self._key!r} has no opening tag")
        self._begin_value()
        if rest := held[_end_of_gap(held) :]:
            self._add_value(rest)

    def _begin_value(self) -> None:
        self._go(State.VALUE)
        self._value = []
        self._streams = permitted_types(_parameter(self._schema, self._key), self._schema) == {"string"}
        separator = ", " if self._arguments else ""
        self.answer.add_arguments(f"{separator}{_quote(self._key)}: ")
        self._arguments += 1
        if self._streams:
            self.answer.add_arguments('"')

    def _add_value(self, text: str) -> None:
        if self._streams:
            self.answer.add_arguments(_quote(text)[1:-1])
        else:
            self._value.append(text)

    def _end_value(self) -> None:
        if not GAP.fullmatch(self._whole()):
            self.answer.flaw(f"text follows the value of {self._key!r}")
        if self._streams:
            self.answer.add_arguments('"')
        else:
            value = read_value("".join(self._value), _parameter(self._schema, self._key), self._schema)
            self.answer.add_arguments(json.dumps(value, ensure_ascii=False))


def _name(text: str, known: Collection[str]) -> str:
    """Returns the name of a call without the gaps around it; a tool's name may itself end like one."""
    name = text.strip()
    while name not in known and (shorter := name.removesuffix("\\n").rstrip()) not in ("", name):
        name = shorter
    return name


def _parameter(root: Mapping[str, Any], key: str) -> Any:
    """Returns the schema of an argument; None if it has none."""
    properties = root.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None


def _end_of_gap(text: str) -> int:
    found = GAP.match(text)
    return 0 if found is None else found.end()


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
