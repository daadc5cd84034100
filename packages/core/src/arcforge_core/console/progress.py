"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 5.0
SECONDS_OF_SILENCE = 2.0
"""After these the first line of a phase comes."""


def say(message: str) -> None:
    """Prints one line to standard error, flushed."""
    print(message, file=sys.stderr, flush=True)


def track(iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yields the items and shows progress.

    A terminal gets a bar with the remaining time; other outputs get a line every few seconds and one at the end, so
    that a short job's log file stays short.

    Args:
        iterable: the items to process.
        description: the activity, e.g. ``tokenising``.
        total: number of items; taken from `iterable` if it has a length.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    return _bar(iterable, description, total) if sys.stderr.isatty() else _lines(iterable, description, total)


def _bar(iterable: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield from progress.track(iterable, description=description, total=total)


def _lines(iterable: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    start, count = time.monotonic(), 0
    of = f" of {total:,}" if total else ""
    with _speaking(lambda: f"{description}: {count:,}{of} ({times(time.monotonic() - start, count, total)})"):
        for item in iterable:
            yield item
            count += 1
    say(f"{description}: {count:,} in {time.monotonic() - start:.1f} s")


def times(seconds: float, count: int, total: int | None) -> str:
    """Returns the time that `count` items took and, with a total, the time that the others will take at that rate."""
    left = f", about {seconds * (total - count) / count:.0f} s left" if total and count else ""
    return f"{seconds:.0f} s{left}"


@contextmanager
def working(description: str) -> Iterator[None]:
    """Names on standard error a phase without countable items: after two seconds, then every few seconds."""
    start = time.monotonic()
    with _speaking(lambda: f"{description} ({time.monotonic() - start:.0f} s)"):
        yield


@contextmanager
def _speaking(line: Callable[[], str]) -> Iterator[None]:
    """Says a line after two seconds, then every few seconds, whatever the body waits for."""
    ended = threading.Event()

    def speak() -> None:
        pause = SECONDS_OF_SILENCE
        while not ended.wait(pause):
            say(line())
            pause = SECONDS_BETWEEN_LINES

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
