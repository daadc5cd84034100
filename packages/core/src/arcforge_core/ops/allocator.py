"""The C library's memory: a process that computes on the CPU keeps what its tensors free."""

from __future__ import annotations

import ctypes
import os

SETTINGS = {"MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20), "MALLOC_TRIM_THRESHOLD_": (-1, -1)}
"""Variables of glibc, their numbers in ``malloc.h``, and values: the greatest threshold that it accepts, and never."""


def keep_freed_memory() -> None:
    """Keeps freed memory for later tensors, up to 32 MiB each, instead of returning it to the system.

    Each returned page comes back by a fault: they take a fifth of a prompt's time and of an optimizer's step. Variables
    of glibc that the user has set keep their values; other C libraries have no such function.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for variable, (parameter, value) in SETTINGS.items():
        if mallopt is not None and variable not in os.environ:
            mallopt(parameter, value)
