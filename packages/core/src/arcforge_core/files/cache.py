"""Directories for files that can be regenerated."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from arcforge_core.console.progress import say

HOME = "~/.cache/arcforge"


def cache_folder(kind: str, chosen: str | Path | None = None) -> Path:
    """Returns the cache directory of one kind of files in `chosen`, else ``$ARCFORGE_CACHE``, else
    ``~/.cache/arcforge``, else, where no folder can be made there, in a temporary folder of this user.

    Args:
        kind: e.g. ``data``.
        chosen: the user's choice, e.g. from an option.
    """
    if place := chosen or os.environ.get("ARCFORGE_CACHE"):
        return Path(place).expanduser() / kind
    return _writable(Path(HOME).expanduser()) / kind


@functools.cache
def _writable(home: Path) -> Path:
    """Returns `home`, or a temporary folder if it cannot be written, as in a container with an unknown user."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home
    except OSError as error:
        place = Path(tempfile.gettempdir()) / f"arcforge-{os.getuid()}"
        if not _private(place):
            place = Path(tempfile.mkdtemp(prefix="arcforge-"))
        say(f"{home} cannot be written ({error.strerror}): the cache is {place}; ARCFORGE_CACHE=FOLDER chooses another")
        return place


def _private(place: Path) -> bool:
    """Makes a folder of this user alone; False if another user could have put files (kernels, shards) into it."""
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError:
        return False
    return place.is_dir() and not place.is_symlink() and found.st_uid == os.getuid() and not found.st_mode & 0o077
