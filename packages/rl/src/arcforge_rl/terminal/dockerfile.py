"""Dockerfiles of tasks: read line by line. An instruction that needs docker is refused with its line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from arcforge_core.errors import DataError

OFFERED = ("FROM", "RUN", "COPY", "ENV", "WORKDIR", "LABEL", "SHELL", "ARG")
WORKDIR = "/app"
"""Where commands run if neither ``WORKDIR`` nor the settings say otherwise."""
APT = re.compile(r"(sudo\s+)?apt(-get)?\s+")
SEPARATORS = ("&&", ";")


@dataclass(frozen=True)
class BuildStep:
    """One instruction.

    Attributes:
        line: its number.
        kind: ``run``, ``copy``, ``apt`` or ``pip``.
        words: the command, sources and target, or the packages.
        cwd: working directory.
    """

    line: int
    kind: str
    words: tuple[str, ...]
    cwd: str


@dataclass(frozen=True)
class BuildRecipe:
    """The contents of a Dockerfile.

    Attributes:
        steps: in order.
        env: variables of later commands.
        workdir: the last working directory.
    """

    steps: tuple[BuildStep, ...]
    env: dict[str, str]
    workdir: str


def read_dockerfile(text: str, where: str) -> BuildRecipe:
    """Reads a Dockerfile.

    The image of ``FROM`` is not fetched: the tools are those of this machine and of layers.

    Raises:
        DataError: an instruction is malformed or not offered, with its line.
    """
    steps: list[BuildStep] = []
    env: dict[str, str] = {}
    workdir = ""
    images = 0
    for line, word, rest in _instructions(text, where):
        place = f"{where}:{line}"
        if word == "FROM":
            images += 1
            if images > 1:
                raise DataError(f"{place}: FROM: builds of several stages are not offered")
        elif word == "WORKDIR":
            workdir = str(PurePosixPath(workdir or "/", _filled(rest.strip("\"'"), env)))
        elif word == "ENV":
            env |= _variables(rest, env, place)
        elif word == "COPY":
            steps.append(BuildStep(line, "copy", _copied(rest, env, place), workdir or WORKDIR))
        elif word == "RUN":
            steps += _run(rest, line, workdir or WORKDIR, place)
        elif word not in OFFERED or word == "ARG":
            raise DataError(f"{place}: {word}: not offered; must be one of {', '.join(OFFERED[:5])}")
    if not images:
        raise DataError(f"{where}: FROM is missing")
    return BuildRecipe(tuple(steps), env, workdir or WORKDIR)


def _instructions(text: str, where: str) -> list[tuple[int, str, str]]:
    found: list[tuple[int, str, str]] = []
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not held and not line.strip()):
            continue
        start = start or number
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        word, _, rest = (held + line).strip().partition(" ")
        if "<<" in rest and word.upper() in ("RUN", "COPY"):
            raise DataError(f"{where}:{start}: {word.upper()} <<: here-documents are not offered")
        found.append((start, word.upper(), rest.strip()))
        held, start = "", 0
    if held:
        raise DataError(f"{where}:{start}: the last line is continued")
    return found


def _filled(text: str, env: dict[str, str]) -> str:
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda name: env.get(name[1] or name[2], ""), text)


def _variables(rest: str, env: dict[str, str], place: str) -> dict[str, str]:
    if "=" not in rest.split(" ")[0]:
        name, _, value = rest.partition(" ")
        return {name: _filled(value.strip(), env)}
    pairs = [word.partition("=") for word in _split(rest, place)]
    bad = [name for name, equals, _ in pairs if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name)]
    if bad:
        raise DataError(f"{place}: ENV: {bad[0]!r} must be NAME=VALUE")
    return {name: _filled(value, env) for name, _, value in pairs}


def _copied(rest: str, env: dict[str, str], place: str) -> tuple[str, ...]:
    words = _listed(rest, place) if rest.startswith("[") else _split(rest, place)
    flags = [word for word in words if word.startswith("--")]
    if flags:
        raise DataError(f"{place}: COPY {flags[0]}: not offered")
    if len(words) < 2:
        raise DataError(f"{place}: COPY: must name sources and a target")
    return tuple(_filled(word, env) for word in words)


def _run(rest: str, line: int, cwd: str, place: str) -> list[BuildStep]:
    if rest.startswith("--"):
        raise DataError(f"{place}: RUN {rest.split()[0]}: not offered")
    if rest.startswith("["):
        return [BuildStep(line, "run", tuple(_listed(rest, place)), cwd)]
    parts = _parts(rest)
    if not any(_package_manager(part) for part in parts):
        return [BuildStep(line, "run", ("/bin/sh", "-c", rest), cwd)]
    steps = []
    for part in parts:
        words = [word for word in _split(part, place) if not re.fullmatch(r"[A-Z_]+=\S*", word) and word != "sudo"]
        kind = _package_manager(part)
        if kind == "apt":
            steps += [BuildStep(line, "apt", names, cwd)] if (names := _apt(words, place)) else []
        elif kind == "pip":
            steps.append(BuildStep(line, "pip", _pip(words, place), cwd))
        elif kind == "npm":
            raise DataError(f"{place}: RUN npm: not offered; put the packages into environment/ and COPY them")
        elif not (words[:2] == ["rm", "-rf"] and all(word.startswith("/var/") for word in words[2:])):
            steps.append(BuildStep(line, "run", ("/bin/sh", "-c", part), cwd))
    return steps


def _package_manager(part: str) -> str:
    if APT.match(re.sub(r"^([A-Z_]+=\S*\s+)+", "", part)):
        return "apt"
    if re.match(r"(python3?\s+-m\s+)?(pip3?|uv\s+pip)\s+install\b", part):
        return "pip"
    return "npm" if re.match(r"(npm|yarn|pnpm)\s", part) else ""


def _apt(words: Sequence[str], place: str) -> tuple[str, ...]:
    asked = [word for word in words[1:] if not word.startswith("-")]
    if asked[:1] in (["update"], ["clean"], ["autoremove"]):
        return ()
    if asked[:1] != ["install"] or not asked[1:]:
        raise DataError(f"{place}: RUN {' '.join(words[:3])}: of apt, update and install of packages are offered")
    names = tuple(word.partition("=")[0] for word in asked[1:])
    if odd := [name for name in names if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]*", name)]:
        raise DataError(f"{place}: RUN apt: {odd[0]!r} is no name of a package")
    return names


def _pip(words: Sequence[str], place: str) -> tuple[str, ...]:
    asked = list(words[words.index("install") + 1 :])
    refused = [word for word in asked if word in ("-r", "-e", "-c", ".") or word.startswith(("--req", "--index", "./"))]
    if refused:
        raise DataError(f"{place}: RUN pip install {refused[0]}: packages must be named")
    names = tuple(word for word in asked if not word.startswith("-"))
    if not names:
        raise DataError(f"{place}: RUN pip install: must name packages")
    return names


def _parts(command: str) -> list[str]:
    """Returns the commands of a list joined by ``&&`` and ``;``, outside of quotes."""
    parts, held, quote, position = [], "", "", 0
    while position < len(command):
        letter = command[position]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif separator := next((one for one in SEPARATORS if command.startswith(one, position)), ""):
            parts.append(held.strip())
            held, position = "", position + len(separator)
            continue
        held += letter
        position += 1
    return [part for part in [*parts, held.strip()] if part]


def _split(text: str, place: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from error


def _listed(text: str, place: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise DataError(f"{place}: {text[:60]!r} must be a list of texts in JSON")
    return found
