"""When which part of a step ran, on which thread."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

KEPT = 20_000
"""Spans that are remembered."""


@dataclass(frozen=True)
class Span:
    """A part of a step: seconds of `time.perf_counter`, and figures about it."""

    name: str
    thread: str
    start: float
    end: float
    figures: dict[str, int]


class Trace:
    """The last spans; cheap enough to be always on."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=KEPT)

    @contextmanager
    def span(self, name: str, **figures: int) -> Iterator[None]:
        """Times the body of a ``with`` statement."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spans.append(Span(name, threading.current_thread().name, start, time.perf_counter(), figures))

    def spans(self, name: str | None = None) -> list[Span]:
        """Returns the spans, those of one name or all, in the order in which they ended."""
        return [span for span in list(self._spans) if name in (None, span.name)]

    def gaps(self) -> list[float]:
        """Returns the seconds from the end of each step's computation to the start of the next one's."""
        steps = self.spans("step")
        return [after.start - before.end for before, after in pairwise(steps)]

    def clear(self) -> None:
        self._spans.clear()

    def save(self, path: str | Path) -> None:
        """Writes Chrome's trace format, which chrome://tracing and Perfetto read."""
        spans = self.spans()
        first = min((span.start for span in spans), default=0.0)
        threads = {name: number for number, name in enumerate(dict.fromkeys(span.thread for span in spans))}
        head = {"pid": os.getpid(), "cat": "engine"}
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "tid": number, "args": {"name": name}, **head}
            for name, number in threads.items()
        ]
        for span in spans:
            times = {"ts": (span.start - first) * 1e6, "dur": (span.end - span.start) * 1e6}
            events.append(
                {"ph": "X", "name": span.name, "tid": threads[span.thread], "args": span.figures, **times, **head}
            )
        Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
