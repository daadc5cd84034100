"""Times the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from arcforge_core.episodes.asking import EngineUse

PHASES = ("sampling", "scoring", "streams", "training", "handover")
"""Playing the tasks, including tools; the verifiers; log-probs of teachers, a reference and the old policy, and values;
gradients and the optimizer; the weight sync."""


class Clock:
    """Accumulates the time of each phase.

    Attributes:
        seconds: of all `PHASES`.
        engine: the time in which an engine in this process computed.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.engine = EngineUse()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Adds the time of the block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start

    @property
    def figures(self) -> dict[str, float]:
        """Returns ``seconds_<phase>``."""
        return {f"seconds_{phase}": round(seconds, 4) for phase, seconds in self.seconds.items()}
