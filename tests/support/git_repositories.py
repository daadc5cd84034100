"""Git repositories for tests, made with none of the user's settings."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.trees import write_files

WHO = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (
    ("NAME", "A Person"), ("EMAIL", "person@example.org"), ("DATE", "2024-05-06T07:08:09+02:00"),
)}  # fmt: skip
ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, **WHO}


def git(folder: Path, *words: str, given: str = "") -> str:
    """Runs git in a folder and returns its output without the last line break."""
    done = subprocess.run(
        ["git", "-C", str(folder), *words], env={**os.environ, **ENVIRONMENT}, input=given, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout.rstrip("\n")


def commit(folder: Path, message: str, files: Mapping[str, str | None]) -> str:
    """Writes files, None deletes one, and commits everything; returns the hash. A new folder becomes a repository."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
    write_files(folder, {path: text for path, text in files.items() if text is not None})
    for path in (path for path, text in files.items() if text is None):
        (folder / path).unlink()
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")
