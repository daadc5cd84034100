"""``--config FILE``: the fields of a YAML file as overrides, before those of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from arcforge_core.config.help import groups_of
from arcforge_core.config.search_path import options
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry

FLAG = "--config"
BEFORE_QUOTE = re.compile(r"(\\*)('|\Z)")
"""Backslashes escape only before a quote or at the end of a text."""
OF_ONE_RUN = ("folder", "resume")
"""Fields of a run's ``config.yaml`` that another run must not take."""


def with_file(config_name: str, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with ``--config FILE`` replaced by the file's fields.

    A file names groups as the command line does (``attention: gqa``), or has their component's fields (a run's own
    ``config.yaml``). Groups that the command line chooses, and their fields, are not taken from the file.

    Raises:
        ConfigError: the file is missing, or holds no YAML mapping.
    """
    rest, files = [], []
    given = iter(arguments)
    for argument in given:
        flag, equals, value = argument.partition("=")
        if flag == FLAG:
            files.append(value if equals else next(given, ""))
        else:
            rest.append(argument)
    chosen = {argument.partition("=")[0].lstrip("+") for argument in rest}
    fields = [field for file in files for field in _fields(config_name, file, chosen)]
    own = (at for at, argument in enumerate(rest) if "=" in argument and not argument.startswith("-"))
    place = next(own, len(rest))
    return [*rest[:place], *fields, *rest[place:]]


def _fields(config_name: str, file: str, chosen: set[str]) -> list[str]:
    if not Path(file).is_file():
        raise ConfigError(FLAG, file, "must be a YAML file" if Path(file).exists() else "no such file")
    try:
        content = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:  # YAML's own errors have no base in common
        raise ConfigError(FLAG, file, f"cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(FLAG, file, "must hold FIELD: VALUE pairs")
    groups = groups_of(config_name)
    found: list[str] = []
    for name, value in content.items():
        if name in chosen or name in OF_ONE_RUN:
            continue
        if name in groups:
            found += _choice(str(name), value, groups[name])
        else:
            found += _flat(str(name), value)
    choices = [field for field in found if field.partition("=")[0] in groups]
    return [*choices, *(field for field in found if field not in choices)]


def _choice(group: str, value: Any, default: str | None) -> Iterator[str]:
    """Yields ``GROUP=NAME`` and the fields of the component; a group of several components maps names to fields."""
    components = [component for component in registry() if component.kind == group]
    if not isinstance(value, Mapping):
        yield f"{group}={written(value)}"
    elif any(getattr(component.load_schema(), "several", False) for component in components):
        if value or default is not None:
            yield f"{group}=[{','.join(value)}]"
        for name, fields in value.items():
            yield from _flat(f"{group}.{name}", {key: each for key, each in fields.items() if key != "name"})
    else:
        if value.get("name") in options(group):
            yield f"{group}={value['name']}"
        yield from _flat(group, {key: each for key, each in value.items() if key != "name" or not components})


def _flat(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _flat(f"{path}.{name}", each)
    else:
        yield f"{path}={written(value)}"


def written(value: Any) -> str:
    """Returns a value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + BEFORE_QUOTE.sub(lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value) + "'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return repr(value)
