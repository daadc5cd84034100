"""Near copies: repositories with other names and much of the same code, such as forks, are on one side of a split."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from arcforge_core.data.near import Phrases
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import files_of
from arcforge_rl.swe.languages.known import language_of

SHARE = 0.3
"""Share of a repository's files of code that others have, from which it is a near copy."""
SMALLEST = 100
"""Bytes of a file that is compared."""


def near_copies(folder: Path, instances: Iterable[Instance]) -> dict[str, str]:
    """Returns the first name of its group for each repository with near copies.

    Args:
        folder: of the environment.
        instances: of the folder; the trees of a repository are compared together.
    """
    files: dict[str, set[str]] = {}
    for one in instances:
        tree, language = folder / "trees" / one.tree, language_of(one.language)
        paths = [tree / path for path in files_of(tree) if language.is_code(path)]
        contents = [path.read_bytes() for path in paths if path.stat().st_size >= SMALLEST]
        files.setdefault(one.repo, set()).update(sha256(content).hexdigest() for content in contents)
    phrases = Phrases(1)
    for name, hashes in files.items():
        if hashes:
            phrases.add(name, sorted(hashes))
    return phrases.groups(SHARE)
