"""Patches: unified diffs as git writes them, read and written without git."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Mapping

from arcforge_core.errors import DataError

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
NO_END = "\\ No newline at end of file"
Files = Mapping[str, str | None]
"""Path -> text; None: there is no such file."""


def diff(old: Files, new: Files) -> str:
    """Returns the patch that turns old texts into new ones."""
    parts = []
    for path in sorted({*old, *new}):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        old_name, new_name = (
            "/dev/null" if before is None else f"a/{path}",
            "/dev/null" if after is None else f"b/{path}",
        )
        parts.append(f"diff --git a/{path} b/{path}\n")
        parts += (
            ["new file mode 100644\n"] if before is None else ["deleted file mode 100644\n"] if after is None else []
        )
        lines = difflib.unified_diff(_lines(before or ""), _lines(after or ""), old_name, new_name)
        parts += [line if line.endswith("\n") else f"{line}\n{NO_END}\n" for line in lines]
    return "".join(parts)


def paths_of(patch: str) -> list[str]:
    """Returns the files that a patch changes, each once.

    Raises:
        DataError: the patch is empty, binary or malformed, or a path leaves the repository.
    """
    found = list(dict.fromkeys(path for old, new, _ in _sections(patch) for path in (old, new) if path is not None))
    if not found:
        raise DataError("the patch changes no file")
    return found


def apply(patch: str, files: Files) -> dict[str, str | None]:
    """Returns the new texts of the files that a patch changes.

    Raises:
        DataError: it does not fit the files, or see `paths_of`.
    """
    done: dict[str, str | None] = {}
    for old, new, hunks in _sections(patch):
        text = "" if old is None else files.get(old)
        if text is None:
            raise DataError(f"the patch changes {old}, which is not there")
        if old is not None and old != new:
            done[old] = None
        if new is not None:
            done[new] = _patched(text, hunks, new)
    if not done:
        raise DataError("the patch changes no file")
    return done


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


def _sections(patch: str) -> list[tuple[str | None, str | None, list[str]]]:
    if re.search(r"^(GIT binary patch|Binary files )", patch, re.MULTILINE):
        raise DataError("the patch changes a binary file, which cannot be read")
    found: list[tuple[str | None, str | None, list[str]]] = []
    old: str | None = None
    left = 0
    lines = patch.split("\n")
    for number, line in enumerate(lines):
        follows = number + 1 < len(lines) and lines[number + 1].startswith("+++ ")
        if left <= 0 and line.startswith("--- ") and follows:
            old = _path(line[4:], "a/")
        elif left <= 0 and line.startswith("+++ "):
            found.append((old, _path(line[4:], "b/"), []))
        elif found and (begun := HUNK.match(line)):
            left = int(begun[2] or 1) + int(begun[4] or 1)
            found[-1][2].append(line)
        elif found and (left > 0 or line.startswith("\\")):
            found[-1][2].append(line)
            left -= 2 if line.startswith(" ") or not line else 0 if line.startswith("\\") else 1
    return found


def _path(text: str, prefix: str) -> str | None:
    path = text.split("\t")[0].rstrip("\r")
    if path == "/dev/null":
        return None
    path = path.removeprefix(prefix)
    if posixpath.normpath(path) != path or path.startswith(("/", "..")):
        raise DataError(f"the patch names {path!r}, which is no path inside the repository")
    return path


def _patched(text: str, hunks: list[str], path: str) -> str:
    source, made, place = _lines(text), list[str](), 0
    for number, line in enumerate(hunks):
        follows = hunks[number + 1] if number + 1 < len(hunks) else ""
        body = line[1:] + ("" if follows.startswith("\\") else "\n")
        if begun := HUNK.match(line):
            start = int(begun[1]) - (1 if begun[2] != "0" else 0)
            if not place <= start <= len(source):
                raise DataError(f"the patch does not fit {path}: it has no line {start + 1}")
            made += source[place:start]
            place = start
        elif line.startswith("+"):
            made.append(body)
        elif line.startswith("-") or line.startswith(" ") or not line:
            if place >= len(source) or source[place] != body:
                raise DataError(f"the patch does not fit {path} at line {place + 1}")
            if not line.startswith("-"):
                made.append(source[place])
            place += 1
    return "".join([*made, *source[place:]])
