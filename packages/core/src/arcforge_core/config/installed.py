"""Options that depend on the installed packages: defaults of groups, and the packages that a command line lacks."""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml
from omegaconf import OmegaConf

from arcforge_core.config.search_path import sources
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.wheels import how_to_install, known_wheels
from arcforge_core.version import PACKAGE

AUTO = "auto"
FIRST = re.compile(r"\$\{first:(\w+),([\w,]+)\}")
"""``${first:GROUP,OPTION,OPTION}`` in a primary configuration: the first option whose package is installed."""


def first_installed(group: str, *choices: str) -> str:
    """Returns the first option of a group that is registered; the last one, of core itself, if none is."""
    return next((option for option in choices if option in registry().names(group)), choices[-1])


OmegaConf.register_new_resolver("first", first_installed, replace=True)
OmegaConf.register_new_resolver("package_folder", lambda: str(PACKAGE), replace=True)


def default_of(written: str | None) -> str | None:
    """Returns the option that a default of a primary configuration means here."""
    found = FIRST.fullmatch(written or "")
    return first_installed(found[1], *found[2].split(",")) if found else written


def fallbacks(defaults: dict[str, str | None], chosen: dict[str, str]) -> str | None:
    """Returns one line about the groups whose best default is not installed; None if there are none.

    Args:
        defaults: group -> default as the primary configuration has it.
        chosen: group -> option that was composed.
    """
    lacking: dict[str, str] = {}
    for group, written in defaults.items():
        if found := FIRST.fullmatch(written or ""):
            best, option = found[2].split(",")[0], default_of(written)
            if option != best and chosen.get(group) == option:
                lacking[f"{group}={option}"] = known_wheels()[group, best]
    if not lacking:
        return None
    wheels = sorted(set(lacking.values()))
    return f"{', '.join(lacking)}, because {' and '.join(wheels)} {'is' if len(wheels) == 1 else 'are'} not installed"


def missing(arguments: Sequence[str]) -> str | None:
    """Returns one message about all options of a command line, and of its recipes, whose packages are not installed.

    Args:
        arguments: overrides; a recipe (``experiment=mini``) counts with the groups that it overrides.
    """
    chosen: dict[str, str] = {}
    for argument in arguments:
        group, equals, options = argument.lstrip("+").partition("=")
        for option in options.strip("[]").split(",") if equals else ():
            chosen |= _overridden(group, option)
    chosen |= dict(argument.lstrip("+").partition("=")[::2] for argument in arguments if "=" in argument)
    lacking = {key: wheel for key, wheel in known_wheels().items() if key[1] == chosen.get(key[0])}
    lacking = {(group, name): wheel for (group, name), wheel in lacking.items() if name not in registry().names(group)}
    if not lacking:
        return None
    wheels = sorted(set(lacking.values()))
    named = " and ".join(f"{group}={name}" for group, name in lacking)
    verb, noun = ("needs", "package") if len(lacking) == 1 else ("need", "packages")
    noun = "package" if len(wheels) == 1 else noun
    return f"{named} {verb} the {noun} {' and '.join(map(repr, wheels))}: {how_to_install(*wheels)}"


def _overridden(group: str, option: str) -> dict[str, str]:
    """Returns the groups that a recipe overrides, with the options."""
    for root in (source.root for source in sources()):
        file = root / group / f"{option}.yaml" if root else None
        if file is not None and file.is_file():
            defaults = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("defaults", [])
            pairs = [pair for entry in defaults if isinstance(entry, dict) for pair in entry.items()]
            return {name.removeprefix("override /"): each for name, each in pairs if name.startswith("override /")}
    return {}
