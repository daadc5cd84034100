"""Layers and set-up of repositories: their needs by rule, then by the modules that are missed."""

from __future__ import annotations

import functools
import json
import re
import shutil
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from arcforge_core.errors import DataError
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import PYTEST, Recipe, recipe_of
from arcforge_rl.swe.instance import Instance, is_test
from arcforge_rl.swe.running import PACKAGES

LEFT_OUT = (
    ".git", ".hg", ".svn", "__pycache__", ".tox", ".nox", ".venv", "venv", ".pytest_cache", ".mypy_cache", ".eggs",
    "build", "dist", ".github", ".cache",
)  # fmt: skip
"""Folders that may hold the repair, or nothing that belongs to a repository's files."""
EXTRAS = ("test", "tests", "testing", "dev")
NAMES = {"yaml": "pyyaml", "dateutil": "python-dateutil", "attr": "attrs", "PIL": "pillow", "bs4": "beautifulsoup4"}
"""Modules whose distribution has another name."""
MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w]+)")
PRESENT = ("pytest", "pip", "setuptools", "wheel", "tox", "coverage", "build", "twine", "flit-core", "hatchling")
"""Distributions that are there already, or that no test needs."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a set-up.

    Attributes:
        packages: that were shown.
        reason: why it failed; empty for success.
    """

    packages: tuple[str, ...]
    reason: str


def layers_of(instance: Instance) -> list[tuple[Path, str]]:
    """Returns the layers of an instance for `SandboxBackend.open`; missing ones are fetched.

    Raises:
        LayerError: one cannot be fetched.
    """
    return layers_for([package for layer in instance.layers for package in layer["packages"]])


def layers_for(packages: Sequence[str]) -> list[tuple[Path, str]]:
    """Returns pytest's layer, and one with these packages if there are any."""
    return list(_layers(tuple(sorted(packages))))


@functools.cache
def _layers(packages: tuple[str, ...]) -> tuple[tuple[Path, str], ...]:
    try:
        metadata.distribution("pytest")
        tools = ensure(PYTEST)
    except metadata.PackageNotFoundError:
        tools = ensure(recipe_of("pytest"))
    shown = tools.shown
    if packages:
        shown = [*shown, *ensure(Recipe("swe-site", "wheels", packages, prefix=PACKAGES)).shown]
    return tuple(shown)


@contextmanager
def source_tree(source: Path) -> Iterator[Path]:
    """Yields a private copy of a repository, from a folder or a source archive, without history and caches.

    Raises:
        DataError: it is neither, leaves its folder, or is empty.
    """
    with tempfile.TemporaryDirectory() as place:
        root = source
        if source.is_file():
            root = Path(place, "archive")
            try:
                with tarfile.open(source) as archive:
                    archive.extractall(root, filter="data")
            except (tarfile.TarError, OSError) as error:
                raise DataError(f"{source} cannot be unpacked: {error}") from error
            inner = list(root.iterdir())
            root = inner[0] if len(inner) == 1 and inner[0].is_dir() else root
        elif not source.is_dir():
            raise DataError(f"{source} is neither a folder nor an archive")
        target = Path(place, "tree")
        copy_clean(root, target)
        if not any(target.rglob("*.py")):
            raise DataError(f"{source} has no Python file")
        yield target


def copy_clean(source: Path, target: Path) -> None:
    """Copies a tree without `LEFT_OUT`, compiled files, links and special files."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        def unwanted(name: str) -> bool:
            path = Path(folder, name)
            odd = path.is_symlink() or not (path.is_file() or path.is_dir())
            return odd or name in LEFT_OUT or name.endswith((".pyc", ".egg-info", ".orig", ".rej"))

        return {name for name in names if unwanted(name)}

    shutil.copytree(source, target, ignore=ignored)


def files_of_tests(tree: Path) -> list[str]:
    """Returns the files that pytest collects."""
    found = [str(path.relative_to(tree)) for path in tree.rglob("*.py")]
    return sorted(p for p in found if is_test(p) and re.search(r"(^|/)(test_[^/]*|[^/]*_test)\.py$", p))


def declared(tree: Path) -> list[str]:
    """Returns the requirements that a repository declares for itself and its tests, by rule."""
    found: list[str] = []
    for info in sorted(tree.glob("PKG-INFO")):
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    try:
        project: Mapping[str, Any] = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        project = {}
    own = project.get("project") or {}
    found += own.get("dependencies") or []
    for name in EXTRAS:
        found += (own.get("optional-dependencies") or {}).get(name) or []
        group = (project.get("dependency-groups") or {}).get(name) or []
        found += [one for one in group if isinstance(one, str)]
    for path in sorted({*tree.glob("*requirements*test*.txt"), *tree.glob("*test*requirements*.txt")}):
        found += path.read_text(encoding="utf-8", errors="replace").splitlines()
    return sorted({name for line in found if (name := _name(line)) and name.lower() not in PRESENT})


def _name(line: str) -> str:
    """Returns the distribution that a requirement names; empty if it is of another extra, or no requirement."""
    extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
    if (extra and extra[1] not in EXTRAS) or re.search(
        r"(sys_platform|platform_system)\s*==\s*['\"](win|Win|darwin)", line
    ):
        return ""
    found = re.match(r"\s*([A-Za-z0-9][\w.-]*)", line)
    return found[1] if found and "://" not in line else ""


def missed(texts: Mapping[str, str]) -> list[str]:
    """Returns the distributions of the modules that failures miss."""
    modules = {name for text in texts.values() for name in MISSING.findall(text)}
    return sorted(NAMES.get(name, name) for name in modules)


def log_attempts(path: Path, repo: str, attempts: Sequence[Attempt]) -> None:
    """Appends attempts to a file, one JSON line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for one in attempts:
            file.write(json.dumps({"repo": repo, "packages": one.packages, "reason": one.reason}) + "\n")
