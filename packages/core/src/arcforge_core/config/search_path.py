"""Locations of presets and recipes: the project's ``./conf``, our recipes, and every plugin's package.

The first source that has a group's option wins. A project may shadow installed options; two installed
distributions with the same option are a conflict, which `conflicts` finds and the composition refuses when that option
is requested.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from arcforge_core.plugins.loader import load_plugins, registry
from arcforge_core.version import PACKAGE

MAIN = "pkg://arcforge_core.conf"
MARKER = "arcforge.toml"
"""A ``./conf`` is a project's if it contains this file; a foreign folder of that name must not shadow presets."""


@dataclass(frozen=True)
class ConfigSource:
    """One entry of the search path: its provider, and its ``pkg://`` or ``file://`` address."""

    provider: str
    path: str

    @property
    def root(self) -> Traversable | None:
        """The folder itself; None if a third-party plugin names one that does not exist."""
        scheme, _, place = self.path.partition("://")
        try:
            folder = Path(place) if scheme == "file" else resources.files(place.replace("/", "."))
        except ModuleNotFoundError:
            return None
        return folder if folder.is_dir() else None


@dataclass(frozen=True)
class Preset:
    """One YAML option of a group; `summary` is the first comment of its file."""

    group: str
    name: str
    provider: str
    summary: str


def project_source() -> ConfigSource | None:
    """Returns ``./conf`` if it contains the marker file."""
    folder = Path.cwd() / "conf"
    return ConfigSource("project", f"file://{folder}") if (folder / MARKER).is_file() else None


def recipe_source() -> ConfigSource | None:
    """Returns the recipes packed into the wheel, or those of the checkout of an editable install."""
    package = PACKAGE
    for folder in (package / "recipes", *(parent / "conf" for parent in package.parents[3:4])):
        if (folder / MARKER).is_file():
            return ConfigSource("arcforge recipes", f"file://{folder}")
    return None


def sources() -> list[ConfigSource]:
    """Returns the search path, first match first; our own presets are always there."""
    plugins = [ConfigSource(owner, path) for owner, path in load_plugins().config_sources]
    unique: dict[str, ConfigSource] = {}
    for source in (project_source(), ConfigSource("arcforge-core", MAIN), recipe_source(), *plugins):
        if source:
            unique.setdefault(source.path, source)
    return list(unique.values())


def presets() -> list[Preset]:
    """Returns every option that is a YAML file, along the search path, shadowed ones included."""
    return list(_presets(tuple(sources())))


@functools.cache
def _presets(path: tuple[ConfigSource, ...]) -> tuple[Preset, ...]:
    found: list[Preset] = []
    for source in path:
        if source.root is None:
            warnings.warn(f"{source.provider} declares presets at {source.path}, and there are none", stacklevel=2)
        else:
            found += _presets_in(source, source.root, "")
    return tuple(found)


def _presets_in(source: ConfigSource, folder: Traversable, group: str) -> Iterator[Preset]:
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir() and not entry.name.startswith(("_", ".")):
            yield from _presets_in(source, entry, f"{group}/{entry.name}".lstrip("/"))
        elif group and entry.name.endswith(".yaml"):
            summary = first_comment(entry.read_text(encoding="utf-8"))
            yield Preset(group, entry.name.removesuffix(".yaml"), source.provider, summary)


def first_comment(text: str) -> str:
    """Returns the first comment line that is not a ``@package`` directive, or an empty string."""
    found = re.search(r"^#(?! *@package)\s*(.*)$", text, re.MULTILINE)
    return found.group(1) if found else ""


def conflicts() -> dict[tuple[str, str], list[str]]:
    """Returns (group, option) -> its claimants, for options that two distributions contain.

    A YAML file named like a registered component is also a conflict, even in a project: it would hide the
    component's schema.
    """
    claims: dict[tuple[str, str], list[str]] = {}
    for component in registry():
        claims.setdefault((component.kind, component.name), []).append(component.distribution)
    components = set(claims)
    for preset in presets():
        key = preset.group, preset.name
        if preset.provider != "project" or key in components:
            claims.setdefault(key, []).append(f"{preset.provider} (YAML)")
    return {key: owners for key, owners in claims.items() if len(owners) > 1}


def options(group: str) -> list[str]:
    """Returns the names that ``group=NAME`` accepts, sorted."""
    return sorted({p.name for p in presets() if p.group == group} | set(registry().names(group)))
