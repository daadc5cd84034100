"""Tool calls as JSON objects: between tags (Hermes, Qwen) or as the whole answer (Llama 3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Unpack

from arcforge_core.chat.parser import CALL, END_CALL, END_THINK, THINK, Parser, ParserSettings
from arcforge_core.chat.values import refuse_constant
from arcforge_core.configs import HermesParserConfig, LlamaParserConfig
from arcforge_core.contracts.chat import Tool

PYTHON_TAG = "<|python_tag|>"
DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant)  # models write raw newlines in strings


class HermesParser(Parser):
    """Reads ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``; emits a call when it is complete."""

    tags = (THINK, END_THINK, CALL, END_CALL)

    def __init__(
        self, config: HermesParserConfig, tools: Sequence[Tool] = (), **settings: Unpack[ParserSettings]
    ) -> None:
        super().__init__(tools, **settings)
        self.config = config
        self._call: list[str] | None = None

    def text(self, text: str) -> None:
        """Processes text outside the reasoning."""
        if self._call is None:
            self.answer.add_content(text)
        else:
            self._call.append(text)

    def tag(self, tag: str) -> None:
        """Processes a tag outside the reasoning."""
        if self._call is None:
            if tag == CALL:
                self._call = []
            else:
                self.answer.add_content(tag)
            return
        if tag == END_CALL and self._add_call("".join(self._call)):
            self._call = None
        else:
            self._call.append(tag)  # a tag inside a string, or a call that is not JSON

    def end(self) -> str:
        """Ends the completion: an unfinished call that is not valid JSON is content."""
        call, self._call = self._call, None
        if call is None or self._add_call("".join(call)):
            return ""
        self.answer.add_content(CALL + "".join(call))
        return "a tool call is not JSON with a name and arguments"

    def _add_call(self, text: str) -> bool:
        found = read_calls(text)
        if len(found) != 1:
            return False
        self.add_call(*found[0])
        return True


class LlamaParser(Parser):
    """Reads an answer that is ``{"name": ..., "parameters": {...}}``, or several of these separated by ``;``.

    Emits such an answer when it is complete, any other as it arrives. Without tools, JSON is content.
    """

    tags = (PYTHON_TAG,)

    def __init__(
        self, config: LlamaParserConfig, tools: Sequence[Tool] = (), **settings: Unpack[ParserSettings]
    ) -> None:
        super().__init__(tools, **(settings | {"thinking": False}))
        self.config = config
        self._held: list[str] | None = [] if tools else None
        """The answer while it may still be calls."""

    def text(self, text: str) -> None:
        if self._held is None:
            self.answer.add_content(text)
            return
        self._held.append(text)
        if not self._may_be_calls():
            self._let_go()

    def tag(self, tag: str) -> None:
        """Processes a tag: it announces calls."""
        if self._held is None:
            self.answer.add_content(tag)
        else:
            self._held.append(tag)

    def end(self) -> str:
        """Ends the completion: the answer is calls only if all of it parses as such."""
        whole = "".join(self._held or ()).strip()
        if not whole:
            return ""
        calls = read_calls(whole.removeprefix(PYTHON_TAG))
        if not calls:
            self._let_go()
            return "the beginning of a tool call is not JSON with a name and parameters"
        for call in calls:
            self.add_call(*call)
        return ""

    def _may_be_calls(self) -> bool:
        start = "".join(self._held or ())[:64].lstrip().removeprefix(PYTHON_TAG).lstrip()
        return start[:1] in ("", "{")

    def _let_go(self) -> None:
        self.answer.add_content("".join(self._held or ()))
        self._held = None


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns (name, arguments) of consecutive JSON objects; [] if there is any other text."""
    calls, position = [], 0
    while position < len(text):
        if text[position] in " \t\r\n;":
            position += 1
            continue
        try:
            value, position = DECODER.raw_decode(text, position)
            json.dumps(value)  # refuses values too deep to be written, as the decoder refuses those too deep to be read
        except (ValueError, RecursionError):
            return []
        call = _call(value)
        if call is None:
            return []
        calls.append(call)
    return calls


def _call(value: Any) -> tuple[str, dict[str, Any]] | None:
    """Returns a call's name and arguments; arguments may be JSON in a string, as in OpenAI's API."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return None
    return (value["name"], arguments) if isinstance(arguments, dict) else None
