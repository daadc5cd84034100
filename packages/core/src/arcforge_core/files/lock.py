"""A lock that one process holds on a folder; the system releases it however the process ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arcforge_core.console.progress import say
from arcforge_core.errors import ArcforgeError

LOCK = ".lock"
"""The locked file in the folder; it contains the process id of its last holder and stays."""
PAUSE = 0.1
"""Seconds between two looks at a lock that is waited for."""


@contextmanager
def locked(folder: Path, seconds: float = 0.0) -> Iterator[None]:
    """Holds an exclusive ``flock`` on ``folder/.lock``; a file system without locks is reported on stderr and used.

    Args:
        folder: that exists.
        seconds: for which a lock that another process holds is waited for; stderr says so, with its id.

    Raises:
        ArcforgeError: another process holds it; the message has its id.
        OSError: the file cannot be created.
    """
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        ends, told = time.monotonic() + seconds, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read().strip() or "with an id that it has not written yet"
                used = f"{os.path.relpath(folder)} is in use by process {holder}"
                if time.monotonic() >= ends:
                    raise ArcforgeError(f"{used}: wait until it ends, or stop it") from error
                if not told:
                    say(f"{used}: waiting")
                told = True
                time.sleep(PAUSE)
                continue
            except OSError as error:
                say(f"{file.name} cannot be locked ({error.strerror}): no second process may use this folder")
            break
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
