"""``arcforge-plugins new hardware NAME``: writes a chip package that installs, passes the suite and is filled in."""

from __future__ import annotations

import re
from importlib import resources
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from arcforge_core.config.schema import check_choice
from arcforge_core.config.search_path import presets
from arcforge_core.errors import ConfigError
from arcforge_core.files.atomic import write_new
from arcforge_core.plugins.hookspecs import PLUGIN_API
from arcforge_core.plugins.registry import Registry
from arcforge_core.version import __version__

KINDS = ("hardware",)
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LENGTH = 40
VALUES = ("null", "true", "false", "nan", "inf")
"""Words that ``hardware=WORD`` reads as values, not as names."""


def new_plugin(kind: str, name: str, parent: Path, registry: Registry) -> Path:
    """Writes a package for a component of `kind` and returns its folder, ``NAME-arcforge`` inside `parent`.

    Raises:
        ConfigError: no template of that kind; a name that is no component's or is taken; a folder that exists or
            cannot be written. Nothing is left of a package that could not be written whole.
    """
    check_choice("kind", kind, KINDS)
    _check_name(kind, name, registry)
    values = _values(name)
    folder = parent / values["distribution"]
    if folder.exists() or folder.is_symlink():
        raise ConfigError("folder", str(folder), "it exists, and is not overwritten: choose another name or --folder")
    templates = _files(resources.files("arcforge_core.cli") / "templates" / kind)
    files = {path.replace("PACKAGE", values["package"]): Template(text).substitute(values) for path, text in templates}
    try:
        write_new(folder, files)
    except OSError as error:
        raise ConfigError("folder", str(folder), f"it cannot be written: {error.strerror or error}") from error
    return folder


def _check_name(kind: str, name: str, registry: Registry) -> None:
    if not NAME.fullmatch(name) or name in VALUES or len(name) > LENGTH:
        raise ConfigError("name", name, f"must be a snake_case name such as acme_npu, with {LENGTH} characters at most")
    if name in registry.names(kind):
        owners = " and ".join(claim.distribution for claim in registry.claims[kind, name])
        raise ConfigError("name", name, f"{kind}={name} is a component of {owners}: choose another name")
    for preset in presets():
        if (preset.group, preset.name) == (kind, name):
            raise ConfigError("name", name, f"{kind}={name} is a preset of {preset.provider}: choose another name")
    try:
        taken = distribution(f"{name}-arcforge")
    except PackageNotFoundError:
        return
    raise ConfigError("name", name, f"{taken.name} {taken.version} is installed: choose another name")


def _values(name: str) -> dict[str, str]:
    """Returns the values of the template's names; the range of core is two minor versions from the installed one on."""
    major, minor = (int(part) for part in __version__.split(".")[:2])
    words = name.split("_")
    return {
        "name": name,
        "package": f"{name}_arcforge",
        "distribution": f"{name}-arcforge".replace("_", "-"),
        "class_name": "".join(word.capitalize() for word in words),
        "words": " ".join([words[0].capitalize(), *([word.upper() for word in words[1:]] or ["chip"])]),
        "core": f">={major}.{minor},<{major}.{minor + 2}",
        "api": str(PLUGIN_API),
    }


def _files(folder: Traversable, prefix: str = "") -> list[tuple[str, str]]:
    """Returns (path, text) of a template's files, whose names end in ``.txt`` there."""
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".txt"):
            found.append((f"{prefix}{entry.name.removesuffix('.txt')}", entry.read_text(encoding="utf-8")))
    return found
