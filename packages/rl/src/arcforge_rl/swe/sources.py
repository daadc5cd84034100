"""Repositories as private copies, without history, caches and anything else that may hold a repair."""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.swe.instance import read_text

LEFT_OUT = (
    ".git", ".hg", ".svn", "__pycache__", ".tox", ".nox", ".venv", "venv", ".pytest_cache", ".mypy_cache", ".eggs",
    ".github", ".cache",
)  # fmt: skip
"""Folders that may hold the repair, or nothing that belongs to a repository's files."""


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
        _describe(target)
        yield target


def _describe(tree: Path) -> None:
    """Gives a Python release or project the metadata of an installed one, which some packages read at their import."""
    text = read_text(tree / "PKG-INFO") or _metadata(tree)
    fields = HeaderParser().parsestr(text)
    name, version = (fields[field] or "" for field in ("Name", "Version"))
    if re.fullmatch(r"\w[\w.-]*", name) and re.fullmatch(r"\w[\w.+!-]*", version):
        folder = tree / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(text, encoding="utf-8")


def _metadata(tree: Path) -> str:
    """Returns the metadata that ``pyproject.toml`` gives; the version is 0 where only a build or git knows it."""
    try:
        read = tomllib.loads(read_text(tree / "pyproject.toml") or "")
    except tomllib.TOMLDecodeError:
        return ""
    project = read.get("project") or {}
    if not isinstance(project, dict):
        return ""
    return f"Metadata-Version: 2.1\nName: {project.get('name', '')}\nVersion: {project.get('version', 0)}\n"


def copy_clean(source: Path, target: Path, left_out: Sequence[str] = ()) -> None:
    """Copies a tree without `LEFT_OUT` and further folders, compiled files, links and special files."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        def unwanted(name: str) -> bool:
            path = Path(folder, name)
            odd = path.is_symlink() or not (path.is_file() or path.is_dir())
            return odd or name in LEFT_OUT or name in left_out or name.endswith((".pyc", ".egg-info", ".orig", ".rej"))

        return {name for name in names if unwanted(name)}

    shutil.copytree(source, target, ignore=ignored)
