"""Conversations and completions for tests of chat templates and parsers, drawn by hypothesis."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from typing import Any

from hypothesis import strategies as st

from arcforge_core.contracts.chat import ChatParser, Delta, Message, Tool, ToolCall
from arcforge_core.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\ufdd0\ufdd1\ufdd2")
"""All characters except those that Unicode reserves for internal use."""
HARD = (
    *SPECIAL_TOKENS, "<|im_end|>", "<|eot_id|>", "\n", " ", "\t", "\\n", '"', "\\", "{", "}", "[1]", "null", "5",
    "True", "<", "</", "<arg", "é", "漢", "🙂", "\u2028", "a",
)  # fmt: skip
"""Fragments that templates and parsers often get wrong."""
hard_texts = st.sampled_from([*HARD, *(before + after for before, after in product(HARD, HARD)), "  a\n</think>\n\nb "])
texts = st.text(CHARACTERS, max_size=4) | hard_texts
names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)

STRING: dict[str, Any] = {"type": "string"}
SCHEMAS: tuple[tuple[dict[str, Any], st.SearchStrategy[Any]], ...] = (
    (STRING, texts),
    ({"type": "string", "enum": ["5", "null"]}, st.sampled_from(["5", "null"])),
    ({"type": "integer"}, st.integers(-(10**20), 10**20)),
    ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5)),
    ({"type": "boolean"}, st.booleans()),
    ({"type": "null"}, st.none()),
    ({"type": ["integer", "null"]}, st.integers(-5, 5) | st.none()),
    ({"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/Numbers"}]}, st.booleans() | st.lists(st.integers(-5, 5))),
    ({"type": "array", "items": STRING}, st.lists(texts, max_size=3)),
    ({"properties": {"x": STRING}}, st.dictionaries(texts, texts | st.none() | st.integers(-5, 5), max_size=3)),
)
"""Schemas and values that round-trip exactly: no schema permits strings and another type."""
TYPED = Tool(
    {
        "type": "function",
        "function": {
            "name": "typed",
            "description": "Every type — <tool_call>",
            "parameters": {
                "type": "object",
                "properties": {f"p{n}": schema for n, (schema, _) in enumerate(SCHEMAS)},
                "$defs": {"Numbers": {"type": "array", "items": {"type": "integer"}}},
            },
        },
    }
)
UNTYPED = Tool({"name": "untyped"})

typed_arguments = st.fixed_dictionaries({}, optional={f"p{n}": values for n, (_, values) in enumerate(SCHEMAS)})
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)
typed_calls = st.builds(lambda arguments: ToolCall("typed", arguments), typed_arguments)
loose_calls = st.builds(
    ToolCall, names | st.just("typed"), st.dictionaries(names | texts | st.just("p0"), json_values, max_size=2)
)


def assistants(calls: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[Message]:
    """Draws assistant messages."""
    return st.builds(
        lambda content, reasoning, made: Message("assistant", content, reasoning=reasoning, tool_calls=tuple(made)),
        texts,
        st.none() | texts,
        st.lists(calls, max_size=2),
    )


def conversations(calls: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[list[Message]]:
    """Draws messages in any order."""
    others = st.builds(Message, st.sampled_from(["system", "user", "tool"]), texts)
    return st.lists(assistants(calls) | others, max_size=4)


def joined(deltas: Iterable[Delta]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Returns reasoning, content and (name, arguments) of calls after joining deltas, as a client would."""
    reasoning, content, calls = "", "", dict[int, list[str]]()
    for delta in deltas:
        reasoning += delta.reasoning
        content += delta.content
        if delta.call is not None:
            call = calls.setdefault(delta.call, ["", ""])
            call[0] += delta.name
            call[1] += delta.arguments
    return reasoning, content, [(name, json.loads(arguments)) for _, (name, arguments) in sorted(calls.items())]


def pieces_of(whole: Sequence[Any], cuts: Iterable[int]) -> list[Any]:
    """Returns a text or a list of ids, cut into pieces."""
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    return [whole[begin:end] for begin, end in pairwise(edges)]


def read_text(parser: ChatParser, pieces: Iterable[str]) -> list[Delta]:
    """Feeds a parser and returns all deltas."""
    return [*(delta for piece in pieces for delta in parser.feed_text(piece)), *parser.finish()]


def read_ids(parser: ChatParser, pieces: Iterable[Sequence[int]]) -> list[Delta]:
    """Feeds a parser and returns all deltas."""
    return [*(delta for piece in pieces for delta in parser.feed(piece)), *parser.finish()]


def with_tokens(tokenizer: Tokenizer, tokens: Sequence[str], chat_template: str | None = None) -> Tokenizer:
    """Returns a tokenizer with further special tokens at the end of its vocabulary."""
    definition = json.loads(tokenizer.definition)
    plain = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    definition["added_tokens"] += [
        {"id": tokenizer.vocab_size + n, "content": token, **plain} for n, token in enumerate(tokens)
    ]
    return Tokenizer(json.dumps(definition), chat_template=chat_template)
