"""Garbage collection of long-lived processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SERVER = (500, 3, 6_000)
"""Thresholds for a server with many requests at a time. Whole collections, which stop it for tenths of a second, come
every few minutes instead of seconds; those of young objects are frequent and short, each of 2,000 at most: in a
gateway a millisecond or two, as many of them are lists of a whole prompt."""


@contextmanager
def frozen_garbage(thresholds: tuple[int, int, int] | None = None) -> Iterator[None]:
    """Exempts all existing objects from garbage collection, which would scan them again and again.

    A program that has exempted objects itself keeps its choice: `gc.unfreeze` would return those too.

    Args:
        thresholds: of `gc.set_threshold`, meanwhile; None keeps them.
    """
    before = gc.get_threshold()
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.collect()
        gc.freeze()
    gc.set_threshold(*(thresholds or before))
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
