"""What third-party modules may do while they are imported: fail with a message, and print to standard error only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Sends output of the block, by Python, C or a child process, to standard error.

    Standard output belongs to the command; another program may read it.
    """
    kept = -1
    with contextlib.redirect_stdout(sys.stderr):
        with contextlib.suppress(OSError):  # one of them is closed
            _flush()
            kept = os.dup(1)
            os.dup2(2, 1)
        try:
            yield
        finally:
            if kept >= 0:
                _flush()
                os.dup2(kept, 1)
                os.close(kept)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()


def is_users_interrupt(error: BaseException) -> bool:
    """Returns whether an exception is Ctrl-C, and not a class of the module's own."""
    return type(error) is KeyboardInterrupt


def words_of(error: BaseException) -> str:
    """Returns type and text of any exception in one line, also of one that has no text to give."""
    try:
        text = " ".join(str(error).split())
    except Exception as broken:
        text = f"its text raises {type(broken).__name__}"
    return f"{type(error).__name__}: {text}"
