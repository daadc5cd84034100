"""A simulated user that is a machine of rules: it answers questions with what it knows, does one thing at a time with
its phone, and leaves after a message that asks for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from arcforge_core.contracts.chat import Tool, ToolCall
from arcforge_rl.dialogue.benchmark import Case
from arcforge_rl.dialogue.phone import MODES

STOP = "###STOP###"
ONE = "I can only do one thing at a time. Which one first?"
YES = "Yes, please do that."
PERSONS = (
    (r"\byou are\b", "I am"), (r"\byou're\b", "I'm"), (r"\byou were\b", "I was"), (r"\byou've\b", "I have"),
    (r"\byou'd\b", "I would"), (r"\byou'll\b", "I will"), (r"\byourself\b", "myself"), (r"\byours\b", "mine"),
    (r"\byour\b", "my"), (r"\b(to|for|with|from|about|gives?|tells?|helps?|lets?|asks?|charged) you\b", r"\1 me"),
    (r"\byou\b", "I"),
)  # fmt: skip
"""Patterns of the second person, and the first person in their place."""
APPS = ("messaging", "browser")
PERMISSIONS = ("sms", "storage", "phone", "network")
VALUES: Mapping[str, Sequence[str]] = {"mode": MODES, "app_name": APPS, "permission": PERMISSIONS}
"""Values that an argument of the phone's tools may have."""


def first_person(text: str) -> str:
    """Returns a scenario's text as the user says it."""
    for pattern, said in PERSONS:
        text = re.sub(pattern, said, text, flags=re.IGNORECASE)
    return " ".join(text.split())


class Person:
    """The user of one conversation.

    Args:
        case: its scenario.
        tools: those of its phone.
    """

    def __init__(self, case: Case, tools: Sequence[Tool]) -> None:
        self._scenario, self._tools = case.scenario, tools
        self._known = [
            first_person(case.scenario[name]) for name in ("known_info", "unknown_info") if name in case.scenario
        ]

    def opening(self) -> str:
        """Returns the first message."""
        return f"Hello. {first_person(self._scenario.get('reason_for_call', 'I need help.'))}"

    def answer(self, heard: str) -> str | ToolCall:
        """Returns the reply to a message of the agent, which may be `STOP`, or a call that it asks for."""
        asked = self.asked(heard)
        if len(asked) > 1:
            return ONE
        if asked:
            return asked[0]
        if "?" not in heard:
            return STOP
        if self._known:
            said, self._known = " ".join(self._known), []
            return said
        return YES

    def asked(self, heard: str) -> list[ToolCall]:
        """Returns the calls that a message names, by tool or by the words of its name, with values that it names."""
        text = heard.casefold()
        named = [
            (match.span(), tool)
            for tool in self._tools
            for match in [re.search(rf"(?<!\w){tool.name.replace('_', '[ _]')}(?!\w)", text)]
            if match
        ]
        longest = [  # "toggle data saver mode" does not name toggle_data
            tool
            for (start, end), tool in named
            if not any(first <= start and end <= last and last - first > end - start for (first, last), _ in named)
        ]
        return [ToolCall(tool.name, _values(tool, text)) for tool in longest]


def _values(tool: Tool, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in tool.parameters.get("properties") or {}:
        named = [value for value in VALUES.get(name, ()) if re.search(rf"(?<!\w){value}(?!\w)", text)]
        if len(named) == 1:
            found[name] = named[0]
    return found
