"""Filters of conversations: each says why one is left out, or nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Protocol

from arcforge_core.checkers import build_checker
from arcforge_core.configs import ConversationsDataConfig
from arcforge_core.data.conversations.conversation import BadRecord, Conversation
from arcforge_core.data.conversations.format import format_flaw
from arcforge_core.data.conversations.near import NearDuplicates
from arcforge_core.errors import ArcforgeError

WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]+")
"""Words; characters where a script has no spaces between them."""
PHRASE, FEWEST_WORDS = 8, 60
"""Words that count as a phrase, and those of an answer below which nothing is called repetitive."""


class Filter(Protocol):
    """A rule; those about duplicates remember what they have let through."""

    def __call__(self, conversation: Conversation) -> str | None:
        """Returns why a conversation is left out; None keeps it."""


def build_filters(config: ConversationsDataConfig) -> dict[str, Filter]:
    """Returns the configured filters by name, in the order in which they are asked: cheap ones first."""
    made: dict[str, Callable[[], Filter]] = {
        "format": lambda: format_flaw,
        "truncation": lambda: truncation,
        "repetition": lambda: lambda conversation: repetition(conversation, config.max_repetition),
        "duplicates": ExactDuplicates,
        "near_duplicates": lambda: NearDuplicates(config.near_duplicates, words_of),
        "answers": lambda: wrong_answer,
    }
    return {name: make() for name, make in made.items() if name in config.filters}


def truncation(conversation: Conversation) -> str | None:
    """Finds conversations that were cut off: by their own word, at the end, or inside code."""
    last = conversation.messages[-1]
    if conversation.cut_off:
        return "its finish_reason says that it was cut off"
    if last.role != "assistant":
        return f"ends with a message of {last.role}"
    if last.content.count("```") % 2:
        return "ends inside a block of code"
    return None


def repetition(conversation: Conversation, limit: float) -> str | None:
    """Finds answers that say the same again and again.

    Measured is the share of phrases of 8 words that stood in the same message before.
    """
    for index, message in enumerate(conversation.messages):
        if message.role != "assistant" or not message.trained:
            continue
        share = repeated_share(f"{message.reasoning or ''}\n{message.content}")
        if share > limit:
            return f"messages[{index}] repeats itself: {share:.0%} of its phrases stood there before"
    return None


def repeated_share(text: str) -> float:
    """Returns the share of a text's phrases that stood in it before; 0 for short texts."""
    words = WORDS.findall(text)
    if len(words) < FEWEST_WORDS:
        return 0.0
    phrases = [tuple(words[n : n + PHRASE]) for n in range(len(words) - PHRASE + 1)]
    return 1 - len(set(phrases)) / len(phrases)


class ExactDuplicates:
    """Conversations that say what an earlier one said, white space aside."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def __call__(self, conversation: Conversation) -> str | None:
        """Returns the reason when this one has been there."""
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


def words_of(conversation: Conversation) -> list[str]:
    """Returns the words of all messages but the system's, in lower case."""
    texts = (f"{m.reasoning or ''} {m.content}" for m in conversation.messages if m.role != "system")
    calls = (json.dumps(dict(c.arguments), ensure_ascii=False) for m in conversation.messages for c in m.tool_calls)
    return WORDS.findall(" ".join((*texts, *calls)).lower())


def wrong_answer(conversation: Conversation) -> str | None:
    """Asks the checkers that the record names.

    Raises:
        BadRecord: there is no such checker, or it cannot be asked.
    """
    for check in conversation.checks:
        try:
            right = build_checker(check.name, check.arguments).check(conversation.messages[check.message].content)
        except ArcforgeError as error:
            raise BadRecord(str(error)) from error
        if not right:
            return f"messages[{check.message}] is wrong: {check.name} does not accept it"
    return None
