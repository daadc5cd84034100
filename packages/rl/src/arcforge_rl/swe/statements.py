"""Texts of tasks: behaviour that failing tests saw, and what a change's message says, without the repair's places."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from arcforge_rl.swe.languages.base import Language
from arcforge_rl.swe.patches import paths_of

LONG = 20
"""Characters of a line that tells a repair."""
SHORT = 8
"""Characters of a line that tells it in the words of a person, if it has signs of code."""
ENDING = "Hidden tests judge the repository as you leave it; tests that you change do not count."


def forbidden(patch: str, least: int = LONG) -> set[str]:
    """Returns what a statement must not say: the files of the repair, and its lines.

    Args:
        patch: the repair.
        least: characters that a line must exceed; below `LONG` it needs signs of code, too.
    """
    files = [PurePosixPath(path) for path in paths_of(patch)]
    names = {part for path in files for part in (str(path), path.name)}
    lines = {line[1:].strip() for line in patch.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")}
    code = {line for line in lines if len(line) > LONG or (len(line) > least and re.search(r"[=()\[\]{}<>;]", line))}
    return {part for part in names | code if part}


def modules_of(patch: str) -> set[str]:
    """Returns the files of a repair as people write them in languages with modules: ``a.b`` and ``a/b`` for a/b.py."""
    parts = [PurePosixPath(path).with_suffix("").parts for path in paths_of(patch)]
    own = [part[1:] if part[0] in ("src", "lib") else part for part in parts]
    return {sign.join(part) for part in own if len(part) > 1 for sign in ("/", ".", "::")}


def statement_of(
    language: Language, name: str, fixed: Sequence[str], texts: Mapping[str, str], secret: set[str],
    names: Sequence[str] = (), said: str = "",
) -> str:  # fmt: skip
    """Returns the text of a task.

    Args:
        language, name: of the repository.
        fixed: tests that the repair turns.
        texts: test -> its failure before.
        secret: see `forbidden`; lines that have one are left out.
        names: that tests need and the repository has not.
        said: text of people that describes the change; empty for none.
    """
    seen = []
    for test in fixed[:5]:
        lines = language.observed(texts.get(test, ""))
        told = [line for line in lines if not any(part in line for part in secret)][:4]
        if told:
            title = re.sub(r"\[.*", "", test.split("::")[-1]).removeprefix("test_").replace("_", " ")
            seen.append(f"- {title}: {' / '.join(told)[:400]}")
    fault = f"Something in {name} does not behave as it should. Find the fault in this repository and repair it."
    parts = [f"This change is wanted in {name}:\n\n{said}" if said else fault]
    parts += ["This was observed:\n" + "\n".join(dict.fromkeys(seen))] if seen else []
    parts += [f"These names are required: {', '.join(names)}."] if names else []
    return "\n\n".join([*parts, ENDING])
