"""Harbor task folders: ``task.toml``, ``instruction.md``, ``environment/``, ``tests/``, ``solution/``, ``steps/``."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from arcforge_core.errors import DataError
from arcforge_rl.terminal.settings import VERSION, check, read_settings

FOLDERS = ("environment", "tests", "solution")
STEPS = "steps"
CONFIG, INSTRUCTION, TEST, SOLVE = "task.toml", "instruction.md", "test.sh", "solve.sh"
LARGEST = 64 << 20
"""Bytes of all files of a task."""
OTHERS = ("README.md", "trajectory.json", ".gitignore")
"""Further names that a task folder may hold."""
Files = Mapping[str, bytes]
"""Relative path -> content; files that begin with ``#!`` are executable."""


@dataclass(frozen=True)
class HarborStep:
    """One step of a task: its own instruction, tests and solution.

    Attributes:
        name: of its folder below ``steps/``.
        instruction: for the agent.
        tests: files that its verifier gets besides those of the task.
        solution: files of the oracle; empty for none.
    """

    name: str
    instruction: str
    tests: Files = field(default_factory=dict)
    solution: Files = field(default_factory=dict)


@dataclass(frozen=True)
class HarborTask:
    """A task as files.

    Attributes:
        name: of its folder.
        instruction: for the agent.
        environment: files of the world, ``Dockerfile`` among them.
        tests: files that the verifier gets, ``test.sh`` among them.
        solution: files of the oracle, ``solve.sh`` among them; empty for none.
        settings: of ``task.toml``.
        steps: parts that are worked on and judged one after the other; empty for a task without steps.
    """

    name: str
    instruction: str
    environment: Files
    tests: Files
    solution: Files = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[HarborStep, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of what decides the world."""
        parts = sha256(repr(sorted(self.settings.get("environment", {}).items())).encode())
        for path, data in sorted(self.environment.items()):
            parts.update(f"{path}\0{len(data)}\0".encode() + data)
        return parts.hexdigest()[:32]

    def section(self, name: str) -> Mapping[str, Any]:
        """Returns a table of the settings, empty if it is not there."""
        found: Mapping[str, Any] = self.settings.get(name, {})
        return found

    def parts(self) -> list[HarborTask]:
        """Returns each step as a task in the same world, or the task itself if it has none.

        A step's verifier has the settings of the task's where it gives none of its own, and its artefacts besides.
        """
        if not self.steps:
            return [self]
        found = []
        for step, own in zip(self.steps, self.settings["steps"], strict=True):
            settings = {key: value for key, value in self.settings.items() if key != "steps"}
            for name in ("agent", "verifier"):
                settings[name] = {**settings.get(name, {}), **own.get(name, {})}
            settings["artifacts"] = [*settings.get("artifacts", []), *own.get("artifacts", [])]
            settings["healthcheck"] = own.get("healthcheck", {})
            tests = {**self.tests, **step.tests}
            name = f"{self.name}/{step.name}"
            found.append(HarborTask(name, step.instruction, self.environment, tests, step.solution, settings))
        return found


def read_task(folder: Path) -> HarborTask:
    """Reads a task folder.

    Raises:
        DataError: a file is missing, a link or special, too large or no text, or ``task.toml`` is not accepted.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder")
    for path in folder.iterdir():
        if path.name not in (known := (CONFIG, INSTRUCTION, *FOLDERS, STEPS, *OTHERS)):
            raise DataError(f"{path}: a task has {', '.join(known)}")
    settings = read_settings(_text(folder / CONFIG), str(folder / CONFIG))
    parts = {name: _files(folder / name) for name in FOLDERS}
    if "Dockerfile" not in parts["environment"]:
        raise DataError(f"{folder}/environment/Dockerfile is missing")
    steps = _steps(folder, settings, parts["tests"])
    instruction = "" if steps else _instruction(folder)
    if not steps:
        _check_scripts(folder, parts["tests"], parts["solution"])
    files = [*parts.values(), *(files for step in steps for files in (step.tests, step.solution))]
    if sum(len(data) for one in files for data in one.values()) > LARGEST:
        raise DataError(f"{folder}: its files have more than {LARGEST >> 20} MiB")
    return HarborTask(folder.name, instruction, **parts, settings=settings, steps=steps)


def _steps(folder: Path, settings: Mapping[str, Any], shared: Files) -> tuple[HarborStep, ...]:
    names = [step["name"] for step in settings.get(STEPS, [])]
    there = sorted(path.name for path in (folder / STEPS).iterdir()) if (folder / STEPS).is_dir() else []
    for name in sorted({*names} ^ {*there}):
        lacks = CONFIG if name in there else STEPS
        raise DataError(f"{folder}: step {name!r} is missing in {lacks}")
    found = []
    for name in names:
        place = folder / STEPS / name
        if place.is_symlink() or not place.is_dir():
            raise DataError(f"{place} must be a folder")
        tests, solution = _files(place / "tests"), _files(place / "solution")
        _check_scripts(place, {**shared, **tests}, solution)
        found.append(HarborStep(name, _instruction(place), tests, solution))
    return tuple(found)


def _instruction(folder: Path) -> str:
    text = _text(folder / INSTRUCTION)
    if not text.strip():
        raise DataError(f"{folder / INSTRUCTION} is empty")
    return text


def _check_scripts(folder: Path, tests: Files, solution: Files) -> None:
    if TEST not in tests:
        raise DataError(f"{folder}/tests/{TEST} is missing")
    if solution and SOLVE not in solution:
        raise DataError(f"{folder}/solution/{SOLVE} is missing")


def write_task(task: HarborTask, folder: Path) -> None:
    """Writes a task as a folder, which must not exist.

    Raises:
        DataError: the folder exists, the settings are not accepted, or a path would leave the folder.
    """
    settings = {"schema_version": VERSION, **task.settings}
    check(settings, str(folder / CONFIG))
    files = {CONFIG: toml_of(settings).encode()}
    if not task.steps:
        files[INSTRUCTION] = task.instruction.encode()
    for name in FOLDERS:
        files |= {f"{name}/{path}": data for path, data in getattr(task, name).items()}
    for step in task.steps:
        files[f"{STEPS}/{step.name}/{INSTRUCTION}"] = step.instruction.encode()
        for name in FOLDERS[1:]:
            files |= {f"{STEPS}/{step.name}/{name}/{path}": data for path, data in getattr(step, name).items()}
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise DataError(f"{folder} exists") from error
    lay(files, folder)


def toml_of(settings: Mapping[str, Any]) -> str:
    """Returns settings as TOML; tables inside a section are inline."""
    plain = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_inline(value)}" for key, value in plain.items()]
    for name, section in settings.items():
        if name not in plain:
            lines += [
                "",
                f"[{_key(name)}]",
                *(f"{_key(key)} = {_inline(value)}" for key, value in section.items()),
            ]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _inline(name)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, str):  # a text of JSON is one of TOML, but for the delete character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def lay(files: Files, folder: Path) -> None:
    """Writes files below a folder of ours; those that begin with ``#!`` become executable.

    Raises:
        DataError: a path would leave the folder.
    """
    for path, data in files.items():
        if not inner(path):
            raise DataError(f"{path!r} is no path inside a task")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if data.startswith(b"#!") else 0o644)


def inner(path: str) -> bool:
    """Returns whether a path is relative and stays inside."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def name_of(text: str) -> str:
    """Returns a text as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "task"


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text") from error


def _bytes(path: Path) -> bytes:
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise DataError(f"{path} is missing") from error
    if not stat.S_ISREG(mode):
        kind = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a special file"
        raise DataError(f"{path} is {kind}; must be a file")
    if path.lstat().st_size > LARGEST:
        raise DataError(f"{path} has more than {LARGEST >> 20} MiB")
    return path.read_bytes()


def _files(folder: Path) -> dict[str, bytes]:
    if folder.is_symlink():
        raise DataError(f"{folder} is a link; must be a folder")
    found: dict[str, bytes] = {}
    for place, folders, names in os.walk(folder):
        for name in folders:
            if Path(place, name).is_symlink():
                raise DataError(f"{Path(place, name)} is a link; must be a folder")
        found |= {str(Path(place, name).relative_to(folder)): _bytes(Path(place, name)) for name in names}
    return found
