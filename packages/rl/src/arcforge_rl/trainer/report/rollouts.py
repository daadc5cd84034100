"""The rollouts in a report: a selection as data for the page's script.

The data contains no HTML: `as_json` escapes all characters that could end the script element, and the script inserts
all strings into the page as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

STEP = re.compile(rb'\{"step": (\d+),')


@dataclass(frozen=True)
class ViewLimits:
    """Limits of a page.

    Attributes:
        steps: steps of the run, evenly spaced, including the first and the last.
        groups: groups per step; those with tokens come first, then those trained on.
        rollouts: rollouts per group.
        tokens: tokens of all rollouts together; further rollouts are shown as conversations.
        characters: characters per message.
    """

    steps: int = 40
    groups: int = 6
    rollouts: int = 16
    tokens: int = 120_000
    characters: int = 8_000


@dataclass
class Shown:
    """The contents of a page.

    Attributes:
        steps: step -> groups, in the script's format.
        left_out: description of the omitted rollouts.
        problem: reason if there are no steps, otherwise empty.
    """

    steps: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    left_out: str = ""
    problem: str = ""


def read_rollouts(path: Path, limits: ViewLimits | None = None) -> Shown:
    """Reads the shown rollouts. The file may be large; it is read twice, for its steps and for the chosen lines."""
    limits = limits or ViewLimits()
    try:
        steps = [step for step, _ in _lines(path)]
    except FileNotFoundError:
        return Shown(problem="missing")
    except OSError as error:
        return Shown(problem=f"unreadable: {error}")
    known = sorted(set(steps))
    if not known:
        return Shown(problem="holds no rollouts")
    chosen = {known[n] for n in np.linspace(0, len(known) - 1, min(limits.steps, len(known))).round().astype(int)}
    groups: dict[int, dict[str, list[dict[str, Any]]]] = {}
    damaged = 0
    for step, line in _lines(path):
        if step in chosen:
            try:
                row = json.loads(line)
                groups.setdefault(step, {}).setdefault(str(row["group"]), []).append(row)
            except (ValueError, KeyError):
                damaged += 1
    return _choose(groups, limits, len(known), len(steps), damaged)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the complete lines with their step; a killed process may leave an unterminated line."""
    with path.open("rb") as file:
        for line in file:
            found = STEP.match(line)
            if found is not None and line.endswith(b"\n"):
                yield int(found[1]), line


def _choose(
    groups: Mapping[int, Mapping[str, list[dict[str, Any]]]],
    limits: ViewLimits,
    steps: int,
    rollouts: int,
    damaged: int,
) -> Shown:
    shown = Shown()
    room, count, without = limits.tokens, 0, 0
    for step, of_step in sorted(groups.items()):
        ordered = sorted(of_step.values(), key=lambda rows: ("tokens" not in rows[0], not rows[0].get("learnt")))
        entries = []
        for rows in ordered[: limits.groups]:
            found = []
            for row in rows[: limits.rollouts]:
                try:
                    needed = sum(len(branch) for branch in row.get("tokens", ()))
                    fits = 0 < needed <= room
                    found.append(_rollout(row, limits, fits))
                except (ValueError, TypeError, AttributeError):
                    damaged += 1
                    continue
                room -= needed if fits else 0
                without += needed > 0 and not fits
            count += len(found)
            if found:
                entries.append(_group(rows, found))
        if entries:
            shown.steps[step] = entries
    parts = []
    if len(shown.steps) < steps or count < rollouts:
        parts.append(f"{count:,} of {rollouts:,} rollouts, of {len(shown.steps):,} of {steps:,} steps")
    if without:
        parts.append(f"{without:,} rollouts without their tokens")
    if damaged:
        parts.append(f"{damaged:,} lines cannot be read")
    shown.left_out = "; ".join(parts)
    shown.problem = "" if shown.steps else "no line can be read"
    return shown


def _group(rows: list[dict[str, Any]], rollouts: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    return {
        "task": str(first.get("task", "")),
        "domain": str(first.get("domain", "")),
        "answer": _cut(str(first.get("answer", "")), 400),
        "learnt": bool(first.get("learnt")),
        "of": len(rows),
        "rollouts": rollouts,
    }


def _rollout(row: Mapping[str, Any], limits: ViewLimits, tokens: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rewards": {str(name): float(value) for name, value in dict(row.get("rewards", {})).items()},
        "reasons": {str(name): _cut(str(why), 1000) for name, why in dict(row.get("reasons", {})).items() if why},
        "length": int(row.get("length", 0)),
        "truncated": bool(row.get("truncated")),
        "messages": [_message(message, limits.characters) for message in row.get("messages", ())],
    }
    if isinstance(failure := row.get("failure"), dict):
        found["failure"] = _cut(f"{failure.get('kind')}: {failure.get('reason')}", 1000)
    if tokens:
        found["tokens"] = [[_token(token) for token in branch] for branch in row["tokens"]]
    return found


def _token(token: Mapping[str, Any]) -> Any:
    """Returns the text of a prompt token; text, log-prob, advantage and factor of a sampled one."""
    text = str(token.get("text", ""))
    if "logprob" not in token:
        return text
    return [text, *(_number(token.get(name)) for name in ("logprob", "advantage", "factor"))]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _message(message: Mapping[str, Any], characters: int) -> list[str]:
    """Returns role and text."""
    words = [str(message.get("content") or "")]
    if message.get("reasoning_content"):
        words.insert(0, f"({message['reasoning_content']})")
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        words.append(f"→ {function.get('name')}({json.dumps(function.get('arguments'), ensure_ascii=False)})")
    return [str(message.get("role", "")), _cut("\n".join(word for word in words if word), characters)]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def as_json(value: Any) -> str:
    """Returns JSON for a script element: ASCII without ``<``, ``>`` or ``&``. NaN becomes null."""
    text = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(of) for name, of in value.items()}
    if isinstance(value, list):
        return [_finite(of) for of in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
