"""How programs reach an engine: the part of it that agents and the rollout loop use, and the one without a barrier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
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
class EngineUse:
    """Counts the time in which an engine has a request.

    Attributes:
        asked: requests that it has now.
        seconds: time in which it had one, up to the last change.
    """

    asked: int = 0
    seconds: float = 0.0
    _since: float = 0.0

    def change(self, by: int) -> None:
        """Counts requests that begin, or those that end as a negative number."""
        now = time.monotonic()
        if self.asked:
            self.seconds += now - self._since
        self._since, self.asked = now, self.asked + by

    def so_far(self) -> float:
        """Returns the seconds up to now."""
        self.change(0)
        return self.seconds


@dataclass
class Streams:
    """Submits every request as it comes: the engine batches them continuously, and no program waits for another.

    Attributes:
        engine: in a thread of its own.
        use: the time in which it has requests of these programs.
    """

    engine: ServingEngine
    use: EngineUse = field(default_factory=EngineUse)

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
        self.use.change(1)
        try:
            return await stream.output()
        finally:
            stream.cancel()  # no effect on one that has ended
            self.use.change(-1)
