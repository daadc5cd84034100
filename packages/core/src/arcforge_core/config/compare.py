"""Two configurations field by field."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Returns ``{"a.b": value}`` of nested dicts."""
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {k: v for name, child in tree.items() for k, v in flatten(child, f"{prefix}{name}.").items()}


def differences(before: dict[str, Any], now: dict[str, Any], skip: Collection[str] = ()) -> list[tuple[str, str, str]]:
    """Returns (name, was, now) of the differing fields; a dash for a field that one side lacks."""
    names = sorted(name for name in before.keys() | now.keys() if name not in skip)
    rows = [(name, str(before.get(name, "-")), str(now.get(name, "-"))) for name in names]
    return [(name, was, new) for name, was, new in rows if was != new]
