"""The C library's memory, and the part that it keeps of freed tensors. Only glibc has functions for it."""

from __future__ import annotations

import ctypes
import os

MMAP_THRESHOLD, TRIM_THRESHOLD = 32 << 20, 1 << 30
"""Bytes of a tensor that is returned to the system when it is freed, the most that glibc accepts; and bytes of unused
memory at the end of the heap that are."""
SETTINGS = {"mmap_threshold": (-3, MMAP_THRESHOLD), "trim_threshold": (-1, TRIM_THRESHOLD)}
"""Names of glibc's settings, their numbers in ``malloc.h``, and values."""


def keep_freed_memory() -> None:
    """Keeps freed memory for later tensors of up to `MMAP_THRESHOLD`, instead of returning it to the system.

    Faults for returned pages take a fifth of a prompt's time, and of an optimizer's step. Settings that the user makes
    by ``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TRIM_THRESHOLD_`` or ``GLIBC_TUNABLES`` stay.
    """
    mallopt, tunables = _function("mallopt"), os.environ.get("GLIBC_TUNABLES", "")
    for name, (parameter, value) in SETTINGS.items():
        made = f"MALLOC_{name.upper()}_" in os.environ or f"glibc.malloc.{name}=" in tunables
        if mallopt is not None and not made:
            mallopt(parameter, value)


def return_freed_memory() -> None:
    """Gives the system all freed memory that lies in whole pages."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    return getattr(ctypes.CDLL(None), name, None)
