"""``reward.toml``: the file that Harbor's rewardkit combines rewards with, and our tables beside it.

A file of rewardkit 0.2 is read unchanged: ``[[reward]]`` has ``name``, ``aggregation``, ``weights`` and
``threshold``. Ours adds ``gates``, ``vetoes``, ``cap`` and ``optional`` to it, and tables ``[component.NAME]``. Its
``[scoring.NAME]``, which combines criteria of a file in a sandbox, has no counterpart here.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from arcforge_core.errors import ConfigError, DataError, nearest
from arcforge_rl.rewards.spec import ROOT, Combination, Measured, RewardPart, RewardSpec

P = TypeVar("P", bound=RewardPart)


def read_rewards(path: Path, known: Sequence[str] | None = None) -> RewardSpec:
    """Returns the reward of a file.

    Args:
        path: of the file.
        known: see `RewardSpec`.

    Raises:
        DataError: the file cannot be read, or is not TOML.
        ConfigError: it says what no reward can be.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"rewards={path}: cannot be read: {error}") from error
    return spec_of(content, known)


def spec_of(content: Mapping[str, Any], known: Sequence[str] | None = None) -> RewardSpec:
    """Returns the reward of a file's content; see `read_rewards`."""
    for table in content:
        if table not in ("reward", "component"):
            accepted = "is no table of a hybrid reward: [[reward]], [component.NAME]"
            raise ConfigError("rewards", table, accepted + nearest(table, ["reward", "component"]))
    rewards, components = content.get("reward", []), content.get("component", {})
    if not isinstance(rewards, list) or not isinstance(components, dict):
        raise ConfigError("rewards", sorted(content), "must be [[reward]] tables and [component.NAME] tables")
    parts: list[RewardPart] = [_part(Combination, {"name": ROOT, **given}, "reward") for given in map(_table, rewards)]
    parts += [
        _part(Measured, {**_table(given), "name": name}, f"component.{name}") for name, given in components.items()
    ]
    return RewardSpec(parts, known)


def to_toml(spec: RewardSpec) -> str:
    """Returns the file of a reward, without fields at their defaults and components that need no table."""
    lines: list[str] = []
    for part in spec.order:
        values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name != "name"}
        defaults = type(part)("")
        values = {name: value for name, value in values.items() if value != getattr(defaults, name)}
        if isinstance(part, Measured) and not values:
            continue
        head = [f"[component.{_key(part.name)}]"]
        if isinstance(part, Combination):
            head = ["[[reward]]", f"name = {_value(part.name)}"]
            values = {"aggregation": part.aggregation, **values}
        lines += [*head, *(f"{name} = {_value(value)}" for name, value in values.items()), ""]
    return "\n".join(lines)


def _table(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError("rewards", given, "must be a table")
    return given


def _part(kind: type[P], fields: Mapping[str, Any], where: str) -> P:
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    for name, value in fields.items():
        if name not in types:
            accepted = f"is unknown: there are {', '.join(types)}{nearest(name, list(types))}"
            raise ConfigError(f"{where}.{name}", value, accepted)
        if not _fits(value, types[name]):
            raise ConfigError(f"{where}.{name}", value, f"must be {_described(types[name])}")
    made: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    if "aggregation" in made:
        made["aggregation"] = made["aggregation"].replace("_", "-")
    return kind(**made)


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("str"):
        return isinstance(value, str)
    if kind.startswith("float"):
        return _is_number(value)
    if kind.startswith("Mapping[str, float]"):
        return isinstance(value, dict) and all(map(_is_number, value.values()))
    if kind.startswith("tuple"):
        return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    if kind.startswith("Sequence"):
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _described(kind: str) -> str:
    starts = {"str": "a text", "float": "a number", "Mapping[str, float]": "a table of numbers", "tuple": "two numbers",
              "Sequence": "a list of names"}  # fmt: skip
    return next((said for start, said in starts.items() if kind.startswith(start)), "a table")


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items()) + " }"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
