"""Compares the files of a finished task with rules; a program of the verifier's sandbox, not imported here.

``python3 -I check.py rules.json`` prints why the first rule does not hold, or that all do, as its last line, and ends
with code 0 only then. Files of the agent are data: no link is followed and nothing is run.
"""

import csv
import hashlib
import io
import json
import math
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from typing import Any

LARGEST = 16 << 20
SECONDS = 40
"""Processor time of all rules; work that takes longer to read is wrong, and no reason to judge again."""
STEPS = 20_000_000
"""Instructions of SQLite's machine for all queries of a rule."""


class Flaw(Exception):
    """A rule that does not hold, in words."""


def data_of(path: str, largest: int = LARGEST) -> bytes:
    """Returns the bytes of a regular file to which no link leads."""
    place = "/"
    for part in path.strip("/").split("/"):
        place = os.path.join(place, part)
        try:
            found = os.lstat(place)
        except OSError:
            raise Flaw(f"{path} is not there, or not to be read") from None
        if stat.S_ISLNK(found.st_mode):
            raise Flaw(f"{place} is a link")
    if not stat.S_ISREG(found.st_mode):
        raise Flaw(f"{path} is no regular file")
    if found.st_size > largest:
        raise Flaw(f"{path} is too large")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Flaw(f"{path} cannot be read: {error.strerror}") from None


def text_of(path: str) -> str:
    try:
        return data_of(path).decode("utf-8")
    except UnicodeDecodeError:
        raise Flaw(f"{path} is no UTF-8 text") from None


def lines_of(text: str) -> list[str]:
    """Returns lines without blanks at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")] if text.strip() else []


def equal(found: Any, wanted: Any) -> bool:
    """Compares values of JSON; true is not 1, and numbers may differ by one part in 10**9."""
    if isinstance(wanted, bool) or isinstance(found, bool) or wanted is None or isinstance(wanted, str):
        return type(found) is type(wanted) and found == wanted
    if isinstance(wanted, (int, float)):
        return isinstance(found, (int, float)) and math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(equal, found, wanted))
    same_keys = isinstance(found, dict) and found.keys() == wanted.keys()
    return same_keys and all(equal(found[key], wanted[key]) for key in wanted)


def check_lines(path: str, lines: list[str]) -> None:
    """The lines of a text, in order."""
    found = lines_of(text_of(path))
    for number, (one, wanted) in enumerate(zip(found, lines, strict=False), 1):
        if one != wanted:
            raise Flaw(f"{path}: line {number} is not as wanted")
    if len(found) != len(lines):
        raise Flaw(f"{path}: {len(found)} lines, not {len(lines)}")


def check_json(path: str, value: Any) -> None:
    """The value of a JSON file."""
    try:
        found = json.loads(text_of(path))
    except (ValueError, RecursionError):
        raise Flaw(f"{path} is no JSON") from None
    if not equal(found, value):
        raise Flaw(f"{path}: the value is not as wanted")


def check_rows(path: str, rows: list[list[str]]) -> None:
    """The rows of a CSV file, in order."""
    try:
        found = [row for row in csv.reader(io.StringIO(text_of(path)), strict=True) if row]
    except csv.Error:
        raise Flaw(f"{path} is no CSV") from None
    if found != rows:
        raise Flaw(f"{path}: the rows are not as wanted")


def check_same(path: str, sha256: str) -> None:
    """The bytes of a file, by their hash."""
    if hashlib.sha256(data_of(path)).hexdigest() != sha256:
        raise Flaw(f"{path}: the content is not as wanted")


def check_tree(path: str, files: dict[str, str]) -> None:
    """All files below a folder, by their hashes, and no further ones."""
    found = set()
    if os.path.islink(path) or not os.path.isdir(path):
        raise Flaw(f"{path} is no folder")
    for place, folders, names in os.walk(path):
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(place, name)))):
            found.add(os.path.relpath(os.path.join(place, name), path))
            if len(found) > 10_000:
                raise Flaw(f"{path} has too many files")
    if found != set(files):
        different = sorted(found ^ set(files))[0]
        raise Flaw(f"{path}/{different} {'is missing' if different in files else 'should not be there'}")
    for name, sha256 in files.items():
        check_same(os.path.join(path, name), sha256)


def check_archive(path: str, files: dict[str, str]) -> None:
    """The members of a tar archive, by their hashes; all are regular files."""
    found: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data_of(path))) as archive:
            for member in archive:
                if member.isdir():
                    continue
                content = archive.extractfile(member) if member.isreg() and member.size <= LARGEST else None
                name = member.name[2:] if member.name.startswith("./") else member.name
                if content is None or name in found or len(found) > 10_000:
                    raise Flaw(f"{path}: {member.name[:80]} is no regular file, or twice there")
                found[name] = hashlib.sha256(content.read()).hexdigest()
    except (tarfile.TarError, OSError, EOFError):
        raise Flaw(f"{path} is no tar archive") from None
    if found != files:
        raise Flaw(f"{path}: the members are not as wanted")


def check_sqlite(path: str, queries: list[tuple[str, list[list[Any]]]]) -> None:
    """The rows of queries on a database."""
    with tempfile.TemporaryDirectory() as place:
        copy = os.path.join(place, "copy.db")
        for ending in ("", "-wal"):
            if ending and not os.path.lexists(path + ending):
                continue
            with open(copy + ending, "wb") as file:
                file.write(data_of(path + ending))
        connection = sqlite3.connect(copy)
        left = [STEPS // 1000]

        def step() -> int:
            left[0] -= 1
            return int(left[0] < 0)

        connection.set_progress_handler(step, 1000)
        try:
            for query, rows in queries:
                if not equal([list(row) for row in connection.execute(query).fetchmany(len(rows) + 1)], rows):
                    raise Flaw(f"{path}: the rows of {query!r} are not as wanted")
        except sqlite3.Error as error:
            raise Flaw(f"{path}: {error}") from None
        finally:
            connection.close()


def check_git(path: str, commands: list[tuple[list[str], str, bool]]) -> None:
    """The answers of git about the objects and references of a repository; its settings and hooks are left out.

    Each command has its arguments, the wanted output, and whether it is only the beginning.
    """
    source = os.path.join(path, ".git")
    if os.path.islink(source) or not os.path.isdir(source):
        raise Flaw(f"{path} is no repository")
    nowhere = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_NO_REPLACE_OBJECTS": "1"}
    with tempfile.TemporaryDirectory() as place:
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": place, "LC_ALL": "C.UTF-8", **nowhere}
        copy = os.path.join(place, "copy.git")
        subprocess.run(["git", "init", "-q", "--bare", copy], env=env, check=True)
        for folder in ("objects", "refs"):
            for root, _, names in os.walk(os.path.join(source, folder)):
                for name in names:
                    if name != "alternates":
                        _take(source, copy, os.path.relpath(os.path.join(root, name), source))
        for name in ("HEAD", "packed-refs"):
            if os.path.lexists(os.path.join(source, name)):
                _take(source, copy, name)
        for words, wanted, only_begins in commands:
            done = subprocess.run(
                ["git", "-C", copy, *words], env=env, capture_output=True, timeout=60, stdin=subprocess.DEVNULL
            )
            found = done.stdout.decode("utf-8", "replace")
            if done.returncode or not (found.startswith(wanted) if only_begins else found == wanted):
                raise Flaw(f"git {' '.join(words)} in {path} does not give what is wanted")


def _take(source: str, copy: str, name: str) -> None:
    target = os.path.join(copy, name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(data_of(os.path.join(source, name)))


CHECKS: dict[str, Callable[..., None]] = {
    "lines": check_lines, "json": check_json, "rows": check_rows, "same": check_same, "tree": check_tree,
    "archive": check_archive, "sqlite": check_sqlite, "git": check_git,
}  # fmt: skip


def main(path: str) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with open(path, encoding="utf-8") as file:
        rules = json.load(file)
    for rule in rules:
        kind = rule.pop("kind")
        if kind == "git" and shutil.which("git") is None:
            raise SystemExit("there is no git")
        try:
            CHECKS[kind](**rule)
        except Flaw as flaw:
            print(flaw)
            return 1
    print(f"{len(rules)} rules hold")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
