"""Layers of npm's packages, installed by npm without running their scripts."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from arcforge_rl.layers.downloads import Downloads
from arcforge_rl.layers.recipes import Recipe
from arcforge_rl.layers.store import LayerError, remove

SECONDS = 900.0
OPTIONS = (
    "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--legacy-peer-deps", "--no-bin-links",
    "--no-update-notifier",
)  # fmt: skip
CACHE = "npm-cache.tar"
WITHOUT = "-"
"""First character of a package whose copies are removed, wherever they are installed."""


def fetch_npm(recipe: Recipe, tree: Path, downloads: Downloads) -> list[str]:
    """Installs packages, and those that they need, into ``node_modules`` of the recipe's prefix.

    Packages are ``NAME@RANGE``, ``NAME``, or ``-NAME``: copies of that one are removed.

    Raises:
        LayerError: as `run_npm`.
    """
    folder = tree / recipe.prefix.lstrip("/")
    folder.mkdir(parents=True)
    wanted = dict(_split(package) for package in recipe.packages if not package.startswith(WITHOUT))
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": wanted}))
    kept = downloads.folder / CACHE
    with tempfile.TemporaryDirectory(dir=tree.parent) as place:
        cache, offline = Path(place, "cache"), [] if downloads.known is None else ["--offline"]
        if offline:
            with tarfile.open(kept) as tar:
                tar.extractall(cache, filter="data")
        run_npm(f"layer {recipe.name}", ("install", *OPTIONS, *offline, "--prefix", str(folder)), folder, cache)
        if not offline:
            with tarfile.open(kept, "w") as tar:
                tar.add(cache / "_cacache", "_cacache")
    modules = folder / "node_modules"
    modules.mkdir(exist_ok=True)
    (modules / ".package-lock.json").unlink(missing_ok=True)
    for name in (package[1:] for package in recipe.packages if package.startswith(WITHOUT)):
        depth = name.count("/")
        for copy in [p for p in modules.rglob(name) if p.is_dir() and p.parents[depth].name == "node_modules"]:
            remove(copy)
    return sorted(found for path in modules.rglob("package.json") if (found := _installed(path)))


def run_npm(what: str, argv: Sequence[str], cwd: Path, cache: Path) -> str:
    """Runs npm with a cache of its own; returns its output.

    Args:
        what: begins the text of errors.
        argv: command and options.
        cwd: working directory.
        cache: a folder for it.

    Raises:
        LayerError: the registry cannot be reached or lacks a package, there is no space, or npm is missing.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise LayerError("tool", f"{what}: npm was not found")
    command = [npm, *argv, "--cache", str(cache)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LayerError("registry", f"{what}: npm did not end in {SECONDS:g} s") from error
    if done.returncode:
        lines = [line.removeprefix("npm ERR! ").removeprefix("npm error ") for line in done.stderr.splitlines()]
        reason = next((line for line in lines if line and not line.startswith(("code ", "errno "))), "no reason given")
        raise LayerError("space" if "ENOSPC" in done.stderr else "registry", f"{what}: npm: {reason}")
    return done.stdout


def _split(package: str) -> tuple[str, str]:
    name, _, version = package[1:].partition("@")
    return package[0] + name, version or "*"


def _installed(path: Path) -> str:
    """Returns name and version of a package that is installed at a path's folder; empty for other files."""
    above = path.parent.parent
    if above.name != "node_modules" and above.parent.name != "node_modules":
        return ""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"{found['name']}@{found['version']}"
    except (ValueError, KeyError, TypeError):
        return ""
