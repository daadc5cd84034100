"""Identity of messages: which message of a request is one that the session knows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from arcforge_core.contracts.chat import Message, Tool

Match = Literal["strict", "loose"]


def seed_of(tools: Sequence[Tool]) -> bytes:
    """Returns the start of a chain: conversations with other tools have other prompts from the first token on."""
    return _digest([tool.definition for tool in tools], sort=False)


def link(chain: bytes, message: Message, match: Match) -> bytes:
    """Returns the chain of a conversation that continues with a message.

    Chains are equal if all their messages are. ``strict``: texts, reasoning and arguments are equal, the order of keys
    included. ``loose``: white space around texts, the order of keys and the type of whole numbers do not matter, nor
    does reasoning, which `agrees` compares. Ids of calls never matter: the model does not sample them.
    """
    return blake2b(chain + _key(message, match), digest_size=16).digest()


def _key(message: Message, match: Match) -> bytes:
    """Returns what a message adds to a chain, written once for each object: a session's requests share them."""
    kept, name = vars(message), f"_{match}_key"
    if name not in kept:
        kept[name] = _written(message, match)
    found: bytes = kept[name]
    return found


def _written(message: Message, match: Match) -> bytes:
    loose = match == "loose"
    calls = [[call.name, _plain(call.arguments) if loose else call.arguments] for call in message.tool_calls]
    if loose:
        return _digest([message.role, message.content.strip(), calls], sort=True)
    return _digest([message.role, message.content, message.reasoning or "", calls], sort=False)


def agrees(sampled: Message, given: Message) -> bool:
    """Whether a client's copy of a reply has its reasoning or, as many clients do, none."""
    return not given.reasoning or given.reasoning.strip() == (sampled.reasoning or "").strip()


def _digest(value: Any, sort: bool) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=sort, separators=(",", ":"), default=dict)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
