"""Files that hold a repair although it does not change them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from arcforge_rl.swe.languages.base import files_of
from arcforge_rl.swe.statements import LONG


def leak(trees: Iterable[Path], patch: str, tools: Iterable[Path] = ()) -> str | None:
    """Returns a file that a repair does not change and that holds all of its telling lines; None for none.

    Args:
        trees: the repository, then folders of installed packages, which may have a copy.
        patch: the repair.
        tools: folders of a toolchain, so large that they have any common line: a copy there has its file's name.
    """
    added = {line[1:].strip() for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")}
    telling = {line.encode() for line in added if len(line) >= LONG}
    if not telling:
        return None
    changed = set(re.findall(r"^\+\+\+ b/(.*)$", patch, re.MULTILINE))
    names = {Path(path).name for path in changed}
    repository, *installed = trees
    suspects = [(repository, path) for path in files_of(repository) if path not in changed]
    suspects += [(tree, path) for tree in installed for path in files_of(tree)]
    suspects += [(tree, path) for tree in tools for path in files_of(tree) if Path(path).name in names]
    return next((path for tree, path in suspects if _holds(tree / path, telling)), None)


def _holds(path: Path, lines: Iterable[bytes]) -> bool:
    content = path.read_bytes()
    return all(line in content for line in lines)
