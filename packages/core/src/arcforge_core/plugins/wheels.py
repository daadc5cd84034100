"""The wheel of each component of ours, for errors about components that are not installed.

The core wheel carries the answer as ``wheels.json``, which ``hatch_build.py`` writes from the tables in the siblings'
plugin modules. A checkout has no such file and reads the modules themselves. This module imports the standard library
only, because the build loads it on its own.
"""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path

FILE = "wheels.json"


@functools.cache
def known_wheels() -> dict[tuple[str, str], str]:
    """Returns (kind, name) -> wheel for the components of our other packages."""
    packed = Path(__file__).with_name(FILE)
    packages = Path(__file__).parents[4]
    rows = json.loads(packed.read_text(encoding="utf-8")) if packed.exists() else wheel_rows(packages)
    return {(kind, name): wheel for kind, name, wheel in rows}


def how_to_install(*wheels: str) -> str:
    """Returns the command that installs wheels of ours: from the clone that this package is in, otherwise by name."""
    packages = Path(__file__).parents[4]
    places = [f"./packages/{wheel.removeprefix('arcforge-')}" for wheel in wheels]
    if all((packages.parent / place).is_dir() for place in places):
        return f"pip install {' '.join(places)}"
    return f"pip install {' '.join(wheels)}, or in a clone pip install {' '.join(places)}"


def wheel_rows(packages: Path) -> list[list[str]]:
    """Returns [kind, name, wheel] for each component of core's siblings below a checkout's ``packages`` folder."""
    plugins = sorted(packages.glob("*/src/arcforge_*/plugin.py"))
    siblings = [(path.parents[2].name, path) for path in plugins if path.parents[2].name != "core"]
    return [[kind, name, f"arcforge-{package}"] for package, path in siblings for kind, name in components(path)]


def components(plugin: Path) -> list[tuple[str, str]]:
    """Returns the (kind, name) pairs of a plugin module's table ``COMPONENTS``, without importing the module."""
    for node in ast.parse(plugin.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPONENTS":
            return [(kind, name) for kind, rows in ast.literal_eval(node.value).items() for name in rows]
    raise ValueError(f"{plugin}: no table COMPONENTS")
