"""The origin of a run, for the head of its page: recipe, data, model and command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape
from pathlib import PurePath
from typing import Any

import yaml

from arcforge_core.report.files import RunFiles

RECIPES = ("experiment", "recipe", "pipeline", "sweep", "stage")


def run_about(run: RunFiles) -> dict[str, str]:
    """Returns names and HTML, without the parts that the run's files lack."""
    config, command = _config(run.config), str(run.versions.get("command", ""))
    words = _words(command)
    recipes = [word for word in words[1:] if word.partition("=")[0].lstrip("+") in RECIPES]
    shown = shlex.join([PurePath(words[0]).name, *words[1:]]) if words else ""
    parts = {
        "recipe": " ".join(word.partition("=")[2] for word in recipes) or ("none: defaults" if words else ""),
        "data": _data(config.get("data")),
        "environment": _name(config.get("environment")),
        "model": " · ".join(filter(None, (_name(config.get(kind)) for kind in ("model", "attention")))),
        "optimizer": _name(config.get("optimizer")),
        "started from": str(config.get("init") or ""),
    }
    about = {name: escape(value) for name, value in parts.items() if value}
    return about | ({"command": f"<code>{escape(shown)}</code>"} if shown else {})


def run_name(run: RunFiles) -> str:
    """Returns the name that the run was given; empty if none."""
    return str(_config(run.config).get("name") or "")


def _config(text: str) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return {}  # the page says that the file cannot be read
    return config if isinstance(config, dict) else {}


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # runs before 0.1 wrote words without quotes
        return command.split()


def _name(section: Any) -> str:
    return str(section.get("name", "")) if isinstance(section, dict) else ""


def _data(section: Any) -> str:
    """Returns the source's name with its folders or files."""
    if not isinstance(section, dict):
        return ""
    places = [str(place) for key in ("paths", "folders", "files") for place in section.get(key) or ()]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"{section.get('name', '')}{': ' if places else ''}{', '.join(places[:3])}{more}"
