"""An engine that computes nothing, for benchmarks and tests of the server before it."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from typing import Any

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams, Token
from arcforge_core.contracts.serving_engine import EngineLimits, EngineStats
from arcforge_serving.engine.stream import Stream


class WholeStream(Stream):
    """A sequence that arrives at its end."""

    def arrive(self, tokens: Sequence[Token], output: GenerationOutput) -> None:
        """Hands all of it over."""
        with self._changed:
            self._tokens += tokens[:-1]
        self.close(output, tokens[-1])


class StubEngine:
    """A `ServingEngine` whose replies are all the same, after the same time."""

    alive, started, paused, weight_version = True, True, False, 0
    limits = EngineLimits(vocabulary=2**20, tokens=2**24, waiting=2**20, weight_bytes=0)

    def __init__(self, ids: Sequence[int], seconds: float) -> None:
        self._ids, self._seconds = list(ids), seconds
        self._tokens = [Token(id_, -1.0, []) for id_ in ids]
        self._due: list[tuple[float, int, WholeStream, int]] = []
        self._changed = threading.Condition()
        self._count = 0

    def start(self) -> None:
        """Starts the clock."""
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Does nothing."""

    def submit(self, prompt: Sequence[int], params: SamplingParams, **further: Any) -> list[Stream]:
        """Answers later."""
        stream = WholeStream()
        with self._changed:
            self._count += 1
            due = (time.monotonic() + self._seconds, self._count, stream, len(prompt))
            heapq.heappush(self._due, due)
            if self._due[0] is due:
                self._changed.notify()
        return [stream]

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, stream, length = heapq.heappop(self._due)
            output = GenerationOutput([*self._ids], [-1.0] * len(self._ids), "stop", 0, cached_tokens=length)
            stream.arrive(self._tokens, output)

    def stats(self) -> EngineStats:
        """Returns the number of requests."""
        return EngineStats(len(self._due), 0, pages=1)

    def abort(self) -> None:
        """Does nothing."""
