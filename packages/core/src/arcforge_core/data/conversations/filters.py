"""Filters of conversations; each returns the reason for dropping one, or None."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Protocol

from arcforge_core.checkers import build_checker
from arcforge_core.configs import ConversationsDataConfig
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.data.conversations.format import format_flaw
from arcforge_core.data.near import WORDS
from arcforge_core.errors import ArcforgeError

NEAR_DUPLICATES, NEAR_PHRASE = "near_duplicates", 5
"""The filter that compares all conversations that pass the others, and the words of a compared phrase."""
PHRASE, FEWEST_WORDS = 8, 60
"""Words of a phrase, and the minimum number of words in an answer that can count as repetitive."""


class Filter(Protocol):
    """A rule; duplicate filters remember the conversations that they have passed."""

    def __call__(self, conversation: Conversation) -> str | None:
        """Returns the reason for dropping a conversation; None keeps it."""


def build_filters(config: ConversationsDataConfig) -> dict[str, Filter]:
    """Returns the configured filters by name, cheap ones first."""
    made: dict[str, Callable[[], Filter]] = {
        "format": lambda: format_flaw,
        "truncation": lambda: truncation,
        "repetition": lambda: lambda conversation: repetition(conversation, config.max_repetition),
        "duplicates": ExactDuplicates,
        "answers": lambda: wrong_answer,
    }
    return {name: make() for name, make in made.items() if name in config.filters}


def truncation(conversation: Conversation) -> str | None:
    """Finds truncated conversations: marked as such, ending without an answer, or ending inside code."""
    last = conversation.messages[-1]
    if conversation.cut_off:
        return "its finish_reason marks it as truncated"
    if last.role != "assistant":
        return f"ends with a message of {last.role}"
    if last.content.count("```") % 2:
        return "ends inside a block of code"
    return None


def repetition(conversation: Conversation, limit: float) -> str | None:
    """Finds answers that repeat themselves.

    Measures the share of 8-word phrases that occurred earlier in the same message.
    """
    for index, message in enumerate(conversation.messages):
        if message.role != "assistant" or not message.trained:
            continue
        share = repeated_share(f"{message.reasoning or ''}\n{message.content}")
        if share > limit:
            return f"messages[{index}] repeats itself: {share:.0%} of its phrases occurred before"
    return None


def repeated_share(text: str) -> float:
    """Returns the share of a text's phrases that occurred earlier in it; 0 for short texts."""
    words = WORDS.findall(text)
    if len(words) < FEWEST_WORDS:
        return 0.0
    phrases = [tuple(words[n : n + PHRASE]) for n in range(len(words) - PHRASE + 1)]
    return 1 - len(set(phrases)) / len(phrases)


class ExactDuplicates:
    """Drops exact copies of an earlier conversation, ignoring white space."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def __call__(self, conversation: Conversation) -> str | None:
        said = [
            (
                m.role,
                m.content.split(),
                (m.reasoning or "").split(),
                [(c.name, dict(c.arguments)) for c in m.tool_calls],
            )
            for m in conversation.messages
        ]
        tools = [dict(tool.definition) for tool in conversation.tools]
        text = json.dumps([said, tools, conversation.mode], sort_keys=True)
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if key in self._seen:
            return "an exact duplicate of an earlier one"
        self._seen.add(key)
        return None


def words_of(conversation: Conversation) -> str:
    """Returns the text of all messages except the system's, with the arguments of tool calls."""
    texts = (f"{m.reasoning or ''} {m.content}" for m in conversation.messages if m.role != "system")
    calls = (json.dumps(dict(c.arguments), ensure_ascii=False) for m in conversation.messages for c in m.tool_calls)
    return " ".join((*texts, *calls))


def wrong_answer(conversation: Conversation) -> str | None:
    """Runs the checkers that the record names.

    Raises:
        BadRecord: a checker does not exist, or cannot judge the answer.
    """
    for check in conversation.checks:
        try:
            right = build_checker(check.name, check.arguments).check(conversation.messages[check.message].content)
        except ArcforgeError as error:
            raise BadRecord(str(error)) from error
        if not right:
            return f"messages[{check.message}] is wrong: {check.name} does not accept it"
    return None
