"""Packages of third parties: folders that sandboxes show, with version and licence. Their code never runs here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.layers.recipes import recipe_of
from arcforge_rl.layers.store import LayerStore

INSIDE = "/opt/arcforge-package"
"""Where sandboxes show the folder."""


@dataclass(frozen=True)
class Package:
    """An unpacked distribution, with those that it needs.

    Attributes:
        folder: what a program's ``sys.path`` has inside as `INSIDE`.
        notice: name, version and licence, in one line.
    """

    folder: Path
    notice: str

    @property
    def layers(self) -> list[tuple[Path, str]]:
        """The argument ``layers`` of `SandboxBackend.open`."""
        return [(self.folder, INSIDE)]


def package_of(layer: str, path: str, module: str) -> Package:
    """Returns a package below a chosen folder, or of a layer.

    Args:
        layer: its name, which is that of the environment.
        path: the folder; empty: the layer.
        module: a directory that the folder must have.

    Raises:
        DataError: the folder has none.
        LayerError: the layer is not there.
    """
    recipe = recipe_of(layer)
    folder = Path(path).expanduser() if path else None
    if folder is None:
        folder = LayerStore().find(recipe).folder / "tree" / recipe.prefix.lstrip("/")
    if not (folder / module).is_dir():
        raise DataError(f"environment.path={path!r} must be a folder with {module}, of {recipe.packages[0]}")
    return Package(folder.resolve(), notice_of(folder, re.split(r"[=<>~! ]", recipe.packages[0])[0]))


def notice_of(folder: Path, distribution: str) -> str:
    """Returns name, version and licence of a distribution, as its metadata have them."""
    for info in folder.glob("*.dist-info"):
        name = info.name.removesuffix(".dist-info").partition("-")[0]
        if re.sub(r"[-_.]+", "-", name).lower() != re.sub(r"[-_.]+", "-", distribution).lower():
            continue
        metadata = HeaderParser().parsestr((info / "METADATA").read_text(encoding="utf-8"))
        licence = metadata.get("License-Expression") or metadata.get("License") or _first_line(info)
        return f"{metadata['Name']} {metadata['Version']}, licence: {licence.splitlines()[0]}"
    return f"{distribution}: no metadata in this folder"


def _first_line(info: Path) -> str:
    for path in sorted(info.rglob("LICEN[CS]E*")):
        lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
        return next(filter(None, lines), "an empty file")
    return "not named"
