"""Arguments that are no ``FIELD=VALUE`` of Hydra: read where the meaning is plain, otherwise refused with a correction.

Runs before Hydra reads the command line. Flags of other programs, positional arguments, fields without their section
and well-known names of other trainers and servers are refused with the field that was meant.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Hashable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from arcforge_core.config.help import groups_of
from arcforge_core.config.renamed import FOREIGN, renamed
from arcforge_core.config.schema import ComponentConfig
from arcforge_core.config.validate import type_words
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.plugins.loader import registry

FLAGS = {
    "-h", "--help", "--version", "-m", "--multirun", "-c", "--cfg", "-p", "--package", "-i", "--info", "-r", "--run",
    "-sc", "--shell-completion", "--resolve", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd",
    "--experimental-rerun", "--hydra-help",
}  # fmt: skip
VALUED = {"-c", "--cfg", "-p", "--package", "-i", "--info", "-sc", "-cp", "-cn", "-cd", "--config-path",
          "--config-name", "--config-dir"}  # fmt: skip
"""Flags that the next argument belongs to."""
WHOLE = re.compile(r"[+-]?\d+(?:\.0*)?(?:[eE]\+?\d+)?|[+-]?\d*\.\d+[eE]\+?\d+")
ADVICE = "options are written FIELD=VALUE"


def understood(config_name: str, schema: type[Any], arguments: Sequence[str]) -> list[str]:
    """Returns the arguments, with whole floats for whole numbers and single values for lists written out.

    Raises:
        ArcforgeError: an argument is no option, or names a field that the command does not have.
    """
    found: list[str] = []
    rest = iter(enumerate(arguments))
    for number, argument in rest:
        flag = argument.split("=")[0]
        if flag in FLAGS and argument.startswith("-"):
            found.append(argument)
            if flag in VALUED and "=" not in argument and number + 1 < len(arguments):
                found.append(next(rest)[1])
        elif argument.startswith("-"):
            raise ArcforgeError(_foreign_flag(config_name, schema, arguments, number))
        elif "=" not in argument and not argument.startswith("~"):
            raise ArcforgeError(_positional(config_name, schema, arguments, number))
        else:
            found.append(_option(config_name, schema, argument))
    return found


def _foreign_flag(config_name: str, schema: type[Any], arguments: Sequence[str], number: int) -> str:
    """Explains ``--minutes=3`` and ``--minutes 3``."""
    name, _, value = arguments[number].lstrip("-").replace("-", "_").partition("=")
    following = arguments[number + 1 :][:1]
    if not value and following and not following[0].startswith("-") and "=" not in following[0]:
        value = following[0]
    meant = closest(config_name, schema, name)
    hint = f"; did you mean {meant}={value or 'VALUE'}?" if meant else f"; {config_name} has no {name!r}"
    return f"{arguments[number]}: {ADVICE}{hint}"


def _positional(config_name: str, schema: type[Any], arguments: Sequence[str], number: int) -> str:
    """Explains ``trainer.minutes 3`` and ``outputs/latest``."""
    argument = arguments[number]
    known = {*paths(schema), *groups_of(config_name)}
    following = arguments[number + 1 :][:1]
    if argument in known and following:
        return f"cannot read {argument!r}: {ADVICE}; did you mean {argument}={following[0]}?"
    place = next((field for field in ("checkpoint", "init", "files") if field in known), None)
    if place and re.fullmatch(r"\S*/\S*", argument):
        value = f"[{argument}]" if place == "files" else argument
        return f"cannot read {argument!r}: {ADVICE}; did you mean {place}={value}?"
    meant = closest(config_name, schema, argument)
    hint = f"; did you mean {meant}=VALUE?" if meant else ""
    quoted = "a value with special characters needs two pairs of quotes, 'FIELD=\"VALUE\"'"
    return f"cannot read {argument!r}: {ADVICE} or GROUP=OPTION; {quoted}{hint}"


def _option(config_name: str, schema: type[Any], argument: str) -> str:
    """Returns an override, its value in the form of the field's type.

    Raises:
        ArcforgeError: the command has no such section, group or field.
    """
    key, _, value = argument.partition("=")
    name = key.lstrip("+~").split("@")[0]
    if not name:
        raise ArcforgeError(f"cannot read {argument!r}: {ADVICE}")
    known = paths(schema)
    groups = groups_of(config_name)
    top = name.split(".")[0]
    roots = {path.split(".")[0] for path in known} | set(groups) | {"hydra", "stages"}
    if top not in roots and not renamed(name) and not key.startswith(("+", "~")):
        meant = closest(config_name, schema, name)
        hint = f"; did you mean {meant!r}?" if meant else f"; it has {', '.join(sorted(roots - {'hydra', 'stages'}))}"
        raise ArcforgeError(f"unknown field {name}: {schema.__name__} has no {top!r}{hint}")
    if name not in known or not value:
        return argument
    return f"{key}={_formed(name, known[name], value)}"


def _formed(name: str, hint: Any, value: str) -> str:
    """Returns a value as its type wants it: ``1e3`` as 1000 for int, ``a`` as [a] for a list."""
    parts = [part for part in get_args(hint) if part is not NoneType] if get_origin(hint) is UnionType else [hint]
    if parts == [int] and WHOLE.fullmatch(value) and not value.lstrip("+-").isdigit() and float(value).is_integer():
        return str(int(float(value)))
    if len(parts) == 1 and get_origin(parts[0]) is list:
        if value.startswith("{"):
            raise ConfigError(name, value, f"must be {type_words(parts[0])}")
        if not value.startswith(("[", "$", "'", '"')) and value != "null" and "," not in value:
            return f"[{value}]"
    return value


def closest(config_name: str, schema: type[Any], name: str) -> str | None:
    """Returns the field or group of a command that a name means, or None.

    Tried in order: well-known names of other programs, the same name in a section, similar names.
    """
    known = [*paths(schema), *groups_of(config_name)]
    last = name.rsplit(".", 1)[-1]
    for path in FOREIGN.get(last, []):
        if path in known:
            return path
    same = sorted((path for path in known if path.rsplit(".", 1)[-1] == last and path != name), key=_depth)
    if same:
        return same[0]
    by_last: dict[str, str] = {}
    for path in sorted(known, key=_depth):
        by_last.setdefault(path.rsplit(".", 1)[-1], path)
    for candidates in ({path: path for path in known}, by_last):
        if match := difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.7):
            return candidates[match[0]]
    return None


def _depth(path: str) -> tuple[int, int, str]:
    """Orders fields: those of the trainer before those of other sections, short paths first."""
    return path.count("."), int(not path.startswith("trainer.")), path


def paths(schema: type[Any]) -> dict[str, Any]:
    """Returns the type of every field of a command by its dotted path; sections of components have those of all."""
    return _all_paths(cast("Hashable", schema))


@functools.cache
def _all_paths(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, hint in _paths(schema, ""):
        found[path] = hint if found.setdefault(path, hint) == hint else Any  # components may differ
    return found


def _paths(schema: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        hint, path = hints[field.name], f"{prefix}{field.name}"
        yield path, hint
        if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
            continue
        if issubclass(hint, ComponentConfig):
            for component in registry():
                if component.kind == field.name:
                    yield from _component_paths(component, path)
        else:
            yield from _paths(hint, f"{path}.")


def _component_paths(component: Any, path: str) -> Iterator[tuple[str, Any]]:
    try:
        schema: type[Any] = component.load_schema()
    except Exception:  # a broken plugin; choosing it raises the error
        return
    yield from ((name, hint) for name, hint in _paths(schema, f"{path}.") if not name.endswith(".name"))
