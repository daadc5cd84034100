"""Packages of third parties: folders that sandboxes show, with version and licence. Their code never runs here."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.layers.recipes import recipe_of
from arcforge_rl.layers.store import LayerStore
from arcforge_rl.sandbox.python import SYSTEM_PYTHON, python_inside

INSIDE = "/opt/arcforge-package"
"""Where sandboxes show the folder."""
PYTHON = "/opt/arcforge-python"
"""Where they show this process's interpreter, if the system's is of another version than compiled modules need."""
COMPILED = re.compile(r"\.cpython-(\d)(\d+)-")


@dataclass(frozen=True)
class Package:
    """An unpacked distribution, with those that it needs.

    Attributes:
        folder: sandboxes show it as `INSIDE`, and programs there have it in their ``sys.path``.
        notice: name, version and licence, in one line.
        python: the interpreter inside.
    """

    folder: Path
    notice: str
    python: str = SYSTEM_PYTHON

    @property
    def layers(self) -> list[tuple[Path, str]]:
        """The argument ``layers`` of `SandboxBackend.open`."""
        own = [(Path(sys.base_prefix), PYTHON)] if self.python.startswith(PYTHON) else []
        return [(self.folder, INSIDE), *own]


def package_of(layer: str, path: str, module: str) -> Package:
    """Returns a package below a chosen folder, or of a layer.

    Args:
        layer: its name, which is that of the environment.
        path: the folder; empty: the layer.
        module: a directory that the folder must have.

    Raises:
        DataError: the folder has none.
        ConfigError: its compiled modules are of another version of Python.
        LayerError: the layer is not there.
    """
    recipe = recipe_of(layer)
    folder = Path(path).expanduser() if path else None
    if folder is None:
        folder = LayerStore().find(recipe).folder / "tree" / recipe.prefix.lstrip("/")
    if not (folder / module).is_dir():
        raise DataError(f"environment.path={path!r} must be a folder with {module}, of {recipe.packages[0]}")
    notice = notice_of(folder, re.split(r"[=<>~! ]", recipe.packages[0])[0])
    return Package(folder.resolve(), notice, _interpreter(folder, layer))


def _interpreter(folder: Path, layer: str) -> str:
    """Returns the interpreter inside that can import a folder's compiled modules.

    Raises:
        ConfigError: they are of another version of Python than this process.
    """
    needed = {".".join(found.groups()) for path in folder.rglob("*.so") if (found := COMPILED.search(path.name))}
    if not needed:
        return python_inside()[0]
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if needed != {own}:
        what = f"{folder} has modules for Python {', '.join(sorted(needed))}, and this is {own}"
        raise ConfigError("environment", layer, f"{what}: free the layer and fetch it again")
    system = Path(SYSTEM_PYTHON)
    return SYSTEM_PYTHON if system.exists() and system.resolve().name == f"python{own}" else f"{PYTHON}/bin/python{own}"


def notice_of(folder: Path, distribution: str) -> str:
    """Returns name, version and licence of a distribution, as its metadata have them."""
    for info in folder.glob("*.dist-info"):
        name = info.name.removesuffix(".dist-info").partition("-")[0]
        if re.sub(r"[-_.]+", "-", name).lower() != re.sub(r"[-_.]+", "-", distribution).lower():
            continue
        metadata = HeaderParser().parsestr((info / "METADATA").read_text(encoding="utf-8"))
        licence = metadata.get("License-Expression") or metadata.get("License") or _licence_line(info)
        return f"{metadata['Name']} {metadata['Version']}, licence: {licence.splitlines()[0]}"
    return f"{distribution}: no metadata in this folder"


def _licence_line(info: Path) -> str:
    """Returns the first line of a licence that says what it is."""
    for path in sorted(info.rglob("LICEN[CS]E*")):
        lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
        named = [line for line in lines if re.search("licen[cs]e", line, re.IGNORECASE)]
        return next(iter([*named, *filter(None, lines)]), "an empty file")
    return "not named"
