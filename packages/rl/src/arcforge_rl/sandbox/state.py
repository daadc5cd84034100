"""The keeper's directory, and what it covers."""

from __future__ import annotations

import os

STATE = "/dev/shm"
"""Covered by the keeper with its own memory file system: a directory that every Linux has, so that nothing remains."""
COVERED = f"{STATE}/covered"
"""Where the keeper finds what lies in this directory on the host."""
LINKS = 40
"""Symbolic links that are followed from one covered path to another, as many as the system follows."""


def reached(path: str) -> str:
    """Returns the path at which the keeper finds a file or directory of the host."""
    real = os.path.realpath(path)
    for _ in range(LINKS):
        if not f"{real}/".startswith(f"{STATE}/") or f"{real}/".startswith(f"{COVERED}/"):
            break
        real = os.path.realpath(COVERED + real.removeprefix(STATE))
    return real
