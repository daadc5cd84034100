"""Streams of events without what timing decides: into how many pieces a text is cut."""

from __future__ import annotations

import json
from typing import Any

TEXTS = ("content", "reasoning_content", "text", "thinking", "partial_json", "arguments", "delta")
"""Fields whose pieces are joined."""


def events(text: str) -> list[dict[str, Any]]:
    """Returns the JSON values of a stream of events."""
    data = [line[len("data:") :].strip() for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def joined(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a stream whose consecutive deltas are one event each; those of OpenAI's chunks are one for the stream."""
    found: list[dict[str, Any]] = []
    for event in stream:
        if found and is_delta(event) and found[-1].get("type") == event.get("type"):
            found[-1] = join(found[-1], event)
        else:
            found.append(event)
    return found


def is_delta(event: dict[str, Any]) -> bool:
    """Whether an event adds to the one before it; OpenAI's chunks have no type."""
    return "delta" in event.get("type", "delta")


def join(first: Any, second: Any, name: str = "") -> Any:
    """Returns two pieces as one: texts and lists are joined, entries with the same `index` merged, else the last one
    that is given counts."""
    if second is None:
        return first
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: join(first.get(key), second.get(key), key) for key in [*first, *(second.keys() - first.keys())]}
    if isinstance(first, list) and isinstance(second, list):
        return join_lists(first, second)
    return first + second if name in TEXTS and isinstance(first, str) else second


def join_lists(first: list[Any], second: list[Any]) -> list[Any]:
    """Returns all entries; those that are objects with the same `index` are one."""
    found = list(first)
    for entry in second:
        index = entry.get("index") if isinstance(entry, dict) else None
        place = next((n for n, old in enumerate(found) if index is not None and old["index"] == index), None)
        if place is None:
            found.append(entry)
        else:
            found[place] = join(found[place], entry)
    return found
