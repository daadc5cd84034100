"""Rules that a draft must keep before it is played: its tests say what its text says, and nothing tells a result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from arcforge_rl.terminal.checks import CHECKS
from arcforge_rl.terminal.dockerfile import WORKDIR
from arcforge_rl.terminal.drafts import Draft
from arcforge_rl.terminal.harbor import inner
from arcforge_rl.terminal.worlds import ARTIFACTS

SHORTEST, LONGEST = 80, 8000
"""Characters of an instruction."""
FEWEST_CHEATS = 2
LARGEST = 4 << 20
"""Bytes of the files of a world."""
TELLING = 20
"""Characters of a wanted value that tells the result where it is found."""
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")


def complaints_about(draft: Draft) -> list[str]:
    """Returns the faults of a draft; nothing of it is run."""
    return list(_complaints(draft))


def _complaints(draft: Draft) -> Iterator[str]:
    size = len(draft.instruction.strip())
    if not SHORTEST <= size <= LONGEST:
        yield f"the instruction has {size} characters; must have {SHORTEST} to {LONGEST}"
    if bool(draft.rules) == bool(draft.check):
        yield "must be judged either by rules or by a program"
    if not draft.solve.strip():
        yield "there is no solution"
    if len({*draft.cheats}) < FEWEST_CHEATS:
        yield f"{len({*draft.cheats})} cheats; must be at least {FEWEST_CHEATS}, each another way to miss the point"
    for path in draft.files:
        if not inner(path):
            yield f"file {path!r}: must be a relative path inside of {WORKDIR}"
    if sum(map(len, draft.files.values())) > LARGEST:
        yield f"its files have more than {LARGEST >> 20} MiB"
    for package in draft.packages:
        if not PACKAGE.fullmatch(package):
            yield f"package {package[:60]!r}: must be the name of a Debian package"
    for path in results_of(draft):
        if not path.startswith("/") or ".." in path.split("/"):
            yield f"result {path!r}: must be an absolute path"
        elif not _is_named(path, draft.instruction):
            yield f"{path} is judged, and the instruction does not name it"
    for value in wanted_of(draft):
        if value in draft.instruction:
            yield f"the instruction tells a part of the result: {value[:60]!r}"
        if value in draft.solve:
            yield f"the solution recites a part of the result instead of making it: {value[:60]!r}"
    for item in draft.rules:
        if item["kind"] not in CHECKS:
            yield f"rule {item['kind']!r} is none of {', '.join(CHECKS)}"


def results_of(draft: Draft) -> list[str]:
    """Returns the paths that are judged, without those that `Draft.collect` writes, which the agent need not know."""
    paths = dict.fromkeys([*draft.results, *(str(item["path"]) for item in draft.rules)])
    return [path for path in paths if not (draft.collect and path.startswith(ARTIFACTS))]


def _is_named(path: str, instruction: str) -> bool:
    """Returns whether a text names a path, a folder above it, or its name."""
    parts = path.removeprefix(f"{WORKDIR}/").strip("/").split("/")
    return any(part in instruction for part in (path, parts[0], parts[-1]))


def wanted_of(draft: Draft) -> Iterator[str]:
    """Yields wanted values that are long enough to tell the result, and that no file of the world has."""
    known = b"\0".join(map(_bytes, draft.files.values())).decode(errors="replace")
    for item in draft.rules:
        if item["kind"] == "json":
            values: Any = [json.dumps(item["value"])]
        else:
            values = item.get("lines", [])
        yield from (value for value in values if len(value) >= TELLING and value not in known)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
