"""How programs reach an engine: the part of it that agents and the rollout loop use, and the one without a barrier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.serving_engine import ServingEngine


class Asking(Protocol):
    """Takes the requests of programs to an engine."""

    def program(self) -> AbstractContextManager[None]:
        """Runs the block as a program that may ask."""

    def away(self) -> AbstractContextManager[None]:
        """Marks the block as a wait for something other than the engine."""

    async def ask(
        self, number: int, prompt: Sequence[int], params: SamplingParams, session: str = ""
    ) -> GenerationOutput:
        """Samples from the engine after a prompt; `number` and `session` are the program's."""


@dataclass
class Streams:
    """Submits every request as it comes: the engine batches them continuously, and no program waits for another.

    Attributes:
        engine: in a thread of its own.
        asked: requests that the engine has now.
        busy_seconds: time in which it had one.
    """

    engine: ServingEngine
    asked: int = 0
    busy_seconds: float = 0.0
    _since: float = 0.0

    def program(self) -> AbstractContextManager[None]:
        """Needs no mark."""
        return nullcontext()

    def away(self) -> AbstractContextManager[None]:
        """Needs no mark."""
        return nullcontext()

    async def ask(
        self, number: int, prompt: Sequence[int], params: SamplingParams, session: str = ""
    ) -> GenerationOutput:
        """Samples; a cancelled caller ends the request in the engine."""
        (stream,) = self.engine.submit(prompt, params, session=session)
        self._count(1)
        try:
            return await stream.output()
        finally:
            stream.cancel()  # no effect on one that has ended
            self._count(-1)

    def seconds_busy(self) -> float:
        """Returns `busy_seconds` up to now."""
        self._count(0)
        return self.busy_seconds

    def _count(self, change: int) -> None:
        now = time.monotonic()
        if self.asked:
            self.busy_seconds += now - self._since
        self._since, self.asked = now, self.asked + change
