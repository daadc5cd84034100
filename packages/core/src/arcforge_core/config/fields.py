"""The fields that a command line may set, and the one that a wrong name means."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast, get_type_hints

from arcforge_core.config.foreign import meant_by
from arcforge_core.config.help import groups_of
from arcforge_core.config.schema import ComponentConfig
from arcforge_core.config.search_path import options
from arcforge_core.plugins.loader import registry

Chosen = frozenset[tuple[str, str]]
"""(group, option) of groups whose option is known before a configuration is composed."""
RECIPES = ("experiment", "stage", "budget", "recipe", "sweep", "model", "pipeline")
"""Groups whose options may choose those of other groups."""


def chosen_of(config_name: str, arguments: Sequence[str]) -> Chosen:
    """Returns the options that the arguments choose, and the defaults of other groups unless a recipe is chosen."""
    groups = groups_of(config_name)
    given = {key.lstrip("+"): value for key, _, value in (argument.partition("=") for argument in arguments)}
    recipe = any(group in given for group in RECIPES)
    found = {group: given.get(group, None if recipe else default) for group, default in groups.items()}
    names = registry().names
    return frozenset((group, option) for group, option in found.items() if option and option in names(group))


def paths(schema: type[Any], chosen: Chosen = frozenset()) -> dict[str, Any]:
    """Returns the type of every field of a command by its dotted path.

    Args:
        schema: the command's root dataclass.
        chosen: sections of these groups have the fields of that component only, others those of all.
    """
    return _all_paths(cast("Any", schema), chosen)


@functools.cache
def _all_paths(schema: Any, chosen: Chosen) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, hint in _paths(schema, "", dict(chosen)):
        found[path] = hint if found.setdefault(path, hint) == hint else Any  # components may differ
    return found


def _paths(schema: type[Any], prefix: str, chosen: dict[str, str]) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        hint, path = hints[field.name], f"{prefix}{field.name}"
        yield path, hint
        if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
            continue
        if issubclass(hint, ComponentConfig):
            for component in registry():
                if component.kind == field.name and chosen.get(field.name, component.name) == component.name:
                    yield from _component_paths(component, path)
        else:
            yield from _paths(hint, f"{path}.", chosen)


def _component_paths(component: Any, path: str) -> Iterator[tuple[str, Any]]:
    try:
        schema: type[Any] = component.load_schema()
    except Exception:  # a broken plugin; choosing it raises the error
        return
    yield from ((name, hint) for name, hint in _paths(schema, f"{path}.", {}) if not name.endswith(".name"))


def closest(
    config_name: str, schema: type[Any], name: str, value: str = "", chosen: Chosen = frozenset()
) -> str | None:
    """Returns the field or group of a command that a name means, or None.

    Tried in order: the same name, well-known names of other programs, the same name in a section, similar names, names
    that begin with it.

    Args:
        config_name: the command.
        schema: its root dataclass.
        name: as it was typed.
        value: typed for it; a group is meant only by one of its options.
        chosen: see `paths`.
    """
    groups, last = groups_of(config_name), name.rsplit(".", 1)[-1]
    own, every = ([*sorted(paths(schema, each), key=_depth), *groups] for each in (chosen, frozenset()))
    for known in (own, every):
        if name in known and (name not in groups or not value or value in options(name)):
            return name
        if path := meant_by(last, known):
            return path
    if name in every:
        return name
    for known in (own, every):
        for path in known:
            if path.rsplit(".", 1)[-1] == last:
                return path
    own = [path for path in own if not name.startswith(f"{path}.")]  # its own section is known to have no such field
    by_last = {path.rsplit(".", 1)[-1]: path for path in reversed(own)}
    for candidates in ({path: path for path in own}, by_last):
        if match := difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.7):
            return candidates[match[0]]
    longer = [path for short, path in by_last.items() if len(last) > 3 and short.startswith(last)]
    return longer[0] if longer else None


def _depth(path: str) -> tuple[int, int, str]:
    """Orders fields: those of the trainer before those of other sections, short paths first."""
    return path.count("."), int(not path.startswith("trainer.")), path
