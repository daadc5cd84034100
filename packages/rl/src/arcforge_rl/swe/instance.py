"""Instances of software engineering, in SWE-bench's form with our own fields beside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from arcforge_core.errors import DataError
from arcforge_rl.swe.patches import apply, paths_of

FILE = "instances.jsonl"
LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
OURS = "arcforge"
"""Name of the object with our own fields."""


@dataclass(frozen=True)
class Instance:
    """One fault with its tests.

    Attributes:
        instance_id, repo, base_commit, patch, test_patch, problem_statement, hints_text, created_at, version,
        environment_setup_commit: as in SWE-bench; `patch` is the repair, without tests.
        FAIL_TO_PASS: tests that the repair must turn.
        PASS_TO_PASS: tests that must stay.
        tree: name of the folder with the repository below ``trees``, without the tests of `tests`.
        tests: path -> text of the files that the verifier lays over the work.
        layers: digests of recipes by the name of their layer.
        kind: ``bug``, ``release``, ``patch``, ``change`` or ``import``.
        change: class of a ``change``: ``fix``, ``feature``, ``refactor`` or ``other``.
        language: a component of the kind ``swe_language``.
    """

    instance_id: str
    repo: str
    base_commit: str
    patch: str
    test_patch: str
    problem_statement: str
    FAIL_TO_PASS: tuple[str, ...]
    PASS_TO_PASS: tuple[str, ...]
    hints_text: str = ""
    created_at: str = ""
    version: str = ""
    environment_setup_commit: str = ""
    tree: str = ""
    tests: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[Mapping[str, Any], ...] = ()
    kind: str = "import"
    language: str = "python"
    change: str = ""

    @property
    def packages(self) -> list[str]:
        """Those of the set-up, which its layer holds."""
        return [package for layer in self.layers for package in layer["packages"]]

    def repair(self, tree: Path) -> dict[str, str | None]:
        """Returns the files of the repair: path -> new text, None for a file that it deletes.

        Raises:
            DataError: the patch does not fit the tree.
        """
        return apply(self.patch, {path: read_text(tree / path) for path in paths_of(self.patch)})

    def as_row(self) -> dict[str, Any]:
        """Returns it in SWE-bench's form: the two lists are JSON in strings."""
        row = asdict(self)
        ours = {name: row.pop(name) for name in ("tree", "tests", "layers", "kind", "change", "language")}
        return {**row, **{name: json.dumps(row[name]) for name in LISTS}, OURS: ours}


def instance_of(row: Mapping[str, Any], where: str) -> Instance:
    """Reads SWE-bench's form, with or without our own fields.

    Raises:
        DataError: a field is missing or has another type; the patch is empty, binary or malformed.
    """
    known = {one.name for one in fields(Instance)}
    found = {name: value for name, value in row.items() if name in known} | dict(row.get(OURS) or {})
    for name in LISTS:
        value = found.get(name)
        try:
            listed = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise DataError(f"{where}: {name} is no JSON: {error}") from error
        if not isinstance(listed, list | tuple) or not all(isinstance(test, str) for test in listed):
            raise DataError(f"{where}: {name} must be a list of tests, as JSON in a string")
        found[name] = tuple(listed)
    for name in ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement"):
        if not isinstance(found.get(name), str):
            raise DataError(f"{where}: {name} must be a text")
    for name in ("hints_text", "created_at", "version", "environment_setup_commit"):
        found[name] = str(found.get(name) or "")
    if not found["FAIL_TO_PASS"]:
        raise DataError(f"{where}: FAIL_TO_PASS has no test, so that nothing would earn the reward")
    try:
        paths_of(found["patch"])
    except DataError as error:
        raise DataError(f"{where}: patch: {error}") from error
    try:
        return Instance(**{**found, "layers": tuple(found.get("layers", ()))})
    except TypeError as error:
        raise DataError(f"{where}: {OURS} has a field that is not known: {error}") from error


def read_instances(folder: Path) -> list[Instance]:
    """Returns the instances of a folder.

    Raises:
        DataError: the file is missing or malformed, an id comes twice, or a tree is missing.
    """
    path = folder / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    found: dict[str, Instance] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: must be an object")
        one = instance_of(row, f"{path}:{number}")
        if one.instance_id in found:
            raise DataError(f"{path}:{number}: {one.instance_id} comes twice")
        if not one.tree or not (folder / "trees" / one.tree).is_dir():
            raise DataError(
                f"{path}:{number}: trees/{one.tree} is not there; an imported instance needs its repository"
            )
        found[one.instance_id] = one
    return list(found.values())


def read_text(path: Path) -> str | None:
    """Returns the text of a regular file; None if there is none, or it is no text."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None
