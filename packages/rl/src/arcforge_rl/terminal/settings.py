"""``task.toml`` of Harbor tasks, schema 1.0 to 1.4: checked key by key, and what a sandbox cannot offer is refused."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from arcforge_core.errors import DataError, nearest

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
VERSION = VERSIONS[-1]
"""The version that is written."""
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _seconds(value: Any) -> bool:
    return _number(value) and 0 < value <= 86_400


def _delay(value: Any) -> bool:
    return _number(value) and 0 <= value <= 86_400


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _variables(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_text, value.values()))


def _user(value: Any) -> bool:
    return _text(value) or _count(value)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _size(value: Any) -> bool:
    return _count(value) or (_text(value) and bool(re.fullmatch(r"\d+(\.\d+)?[KMG]", value.strip().upper())))


def _threshold(value: Any) -> bool:
    return _number(value) or (isinstance(value, dict) and all(map(_number, value.values())))


TEXT, SECONDS, COUNT, TEXTS = (_text, "a text"), (_seconds, "seconds, above 0 and at most 86400"), (
    _count, "a whole number of at least 0"), (_texts, "a list of texts")  # fmt: skip
VARIABLES, USER, TABLE = (_variables, "a table of texts"), (_user, "a name or number"), (_table, "a table")
NUMBER, FLAG, SIZE = (_number, "a finite number"), (_flag, "true or false"), (_size, "a size such as 512M")
DELAY = (_delay, "seconds, at least 0")


def _one_of(*values: str) -> tuple[Check, str]:
    return (lambda value: value in values), f"one of {', '.join(values)}"


NETWORK: dict[str, Any] = {
    "network_mode": _one_of("no-network", "public", "allowlist"), "allowed_hosts": TEXTS,
}  # fmt: skip
HEALTH: dict[str, Any] = {
    "command": TEXT, "interval_sec": SECONDS, "timeout_sec": SECONDS, "start_period_sec": DELAY,
    "start_interval_sec": SECONDS, "retries": COUNT,
}  # fmt: skip
ENVIRONMENT: dict[str, Any] = {
    **NETWORK, "build_timeout_sec": SECONDS, "docker_image": TEXT, "os": _one_of("linux", "windows"),
    "cpus": NUMBER, "memory_mb": COUNT, "storage_mb": COUNT, "memory": SIZE, "storage": SIZE, "gpus": COUNT,
    "gpu_types": TEXTS, "tpu": TABLE, "mcp_servers": [{"name": TEXT, "transport": TEXT, "url": TEXT, "command": TEXT,
    "args": TEXTS, "headers": VARIABLES}], "env": VARIABLES, "skills_dir": TEXT, "healthcheck": HEALTH,
    "workdir": TEXT, "allow_internet": FLAG,
}  # fmt: skip
AGENT: dict[str, Any] = {**NETWORK, "timeout_sec": SECONDS, "user": USER}
VERIFIER: dict[str, Any] = {
    **NETWORK, "timeout_sec": SECONDS, "env": VARIABLES, "user": USER,
    "environment_mode": _one_of("shared", "separate"), "environment": ENVIRONMENT,
    "collect": [{"command": TEXT, "service": TEXT, "timeout_sec": SECONDS, "user": USER}],
}  # fmt: skip
ARTIFACTS: list[Any] = [TEXT, {"source": TEXT, "destination": TEXT, "exclude": TEXTS, "service": TEXT}]
TASK: dict[str, Any] = {
    "schema_version": _one_of(*VERSIONS), "version": _one_of(*VERSIONS), "source": TEXT,
    "multi_step_reward_strategy": _one_of("mean", "final"), "artifacts": ARTIFACTS, "metadata": TABLE,
    "task": {"name": ((lambda value: _text(value) and bool(NAME.fullmatch(value))), "a name such as org/task"),
        "version": TEXT, "description": TEXT, "authors": [{"name": TEXT, "email": TEXT}], "keywords": TEXTS},
    "agent": AGENT, "verifier": VERIFIER, "environment": ENVIRONMENT, "solution": {"env": VARIABLES},
    "steps": [{"name": ((lambda value: _text(value) and bool(STEP.fullmatch(value))), "a name of a folder"),
        "agent": AGENT, "verifier": VERIFIER, "min_reward": (_threshold, "a number or a table of numbers"),
        "healthcheck": HEALTH, "artifacts": ARTIFACTS}],
}  # fmt: skip
"""Key -> what it accepts: a check with its words, a table, or a list whose elements fit one of its forms."""


def read_settings(text: str, where: str) -> dict[str, Any]:
    """Returns the settings of a ``task.toml``, checked.

    Raises:
        DataError: it is no TOML, has another version, or a key is unknown or has a value that is not accepted.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where}: {error}") from error
    check(found, where)
    return found


def check(settings: Mapping[str, Any], where: str) -> None:
    """Checks settings; see `read_settings`."""
    if "schema_version" in settings and "version" in settings:
        raise DataError(f"{where}: version is the old name of schema_version; must be given once")
    _check(settings, TASK, where, "")
    names = [step.get("name") for step in settings.get("steps", [])]
    if None in names:
        raise DataError(f"{where}: steps[{names.index(None)}].name is missing")
    if twice := [name for name in names if [str(other).casefold() for other in names].count(str(name).casefold()) > 1]:
        raise DataError(f"{where}: steps: the name {twice[0]!r} comes twice")
    if settings.get("multi_step_reward_strategy") and not settings.get("steps"):
        raise DataError(f"{where}: multi_step_reward_strategy is of tasks with steps, and there are none")


def _check(value: Any, form: Any, where: str, path: str) -> None:
    if isinstance(form, dict):
        if not isinstance(value, dict):
            raise DataError(f"{where}: {path} must be a table, not {value!r}")
        for key, inner in value.items():
            name = f"{path}.{key}" if path else key
            if key not in form:
                raise DataError(f"{where}: {name} is not known{nearest(key, form)}")
            _check(inner, form[key], where, name)
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise DataError(f"{where}: {path} must be a list, not {value!r}")
        for number, inner in enumerate(value):
            table = next((one for one in form if isinstance(one, dict)), None)
            plain = next((one for one in form if isinstance(one, tuple)), None)
            _check(inner, table if isinstance(inner, dict) or plain is None else plain, where, f"{path}[{number}]")
    elif not form[0](value):
        raise DataError(f"{where}: {path}={value!r}: must be {form[1]}")


def megabytes(settings: Mapping[str, Any], name: str, default: int) -> int:
    """Returns ``memory`` or ``storage`` of an environment in MB, under its new or its old name."""
    if f"{name}_mb" in settings:
        return int(settings[f"{name}_mb"]) or default
    old = settings.get(name)
    if old is None:
        return default
    if isinstance(old, int):
        return old or default
    number, unit = float(old.strip()[:-1]), old.strip().upper()[-1]
    return max(1, int(number * {"K": 1 / 1024, "M": 1, "G": 1024}[unit]))


def unplayable(settings: Mapping[str, Any]) -> str:
    """Returns why the sandboxes of this machine cannot play a task with these settings; empty if they can."""
    world, verifier = settings.get("environment", {}), settings.get("verifier", {})
    wanted = [
        ("environment.network_mode", world.get("network_mode") in ("public", "allowlist")),
        ("environment.allow_internet", bool(world.get("allow_internet"))),
        ("agent.network_mode", settings.get("agent", {}).get("network_mode") in ("public", "allowlist")),
        ("verifier.network_mode", verifier.get("network_mode") in ("public", "allowlist")),
    ]
    for name, given in wanted:
        if given:
            return f"{name}: sandboxes have no network"
    for name in ("docker_image", "tpu", "mcp_servers", "skills_dir"):
        if world.get(name):
            return f"environment.{name}: not offered here"
    if world.get("os") == "windows" or world.get("gpus"):
        return "environment: sandboxes have Linux without GPUs"
    if verifier.get("environment"):
        return "verifier.environment: the verifier gets a fresh copy of the agent's environment, no other"
    users = {f"{name}.user": settings.get(name, {}).get("user") for name in ("agent", "verifier")}
    users |= {f"verifier.collect[{n}].user": one.get("user") for n, one in enumerate(verifier.get("collect", []))}
    for name, user in users.items():
        if user is not None:
            return f"{name}: there is one user for the agent and one for the verifier"
    for one in [*verifier.get("collect", []), *_tables(settings.get("artifacts", []))]:
        if one.get("service", "main") != "main":
            return f"service={one['service']}: there is one machine, main"
    for number, step in enumerate(settings.get("steps", [])):
        if reason := unplayable({name: step[name] for name in ("agent", "verifier", "artifacts") if name in step}):
            return f"steps[{number}]: {reason}"
    return ""


def _tables(entries: list[Any]) -> list[dict[str, Any]]:
    return [one for one in entries if isinstance(one, dict)]
