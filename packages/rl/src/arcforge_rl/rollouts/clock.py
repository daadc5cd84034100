"""Seconds of the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("sampling", "scoring", "training", "handover")
"""Playing the tasks, tools included; the verifiers; gradients, and the streams that they need; weights to the
engine."""


class Clock:
    """Adds up what each phase takes. `seconds` has all of `PHASES`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Counts what is inside as a phase's."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start

    @property
    def figures(self) -> dict[str, float]:
        """Returns ``seconds_<phase>``."""
        return {f"seconds_{phase}": round(seconds, 4) for phase, seconds in self.seconds.items()}
