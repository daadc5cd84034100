"""The sequences of one request in the engine, read as pieces: the only place that consumes streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_serving.errors import ClosedError
from arcforge_serving.server.detokenize import Piece, Reader
from arcforge_serving.server.state import ServerState
from arcforge_serving.stream import Stream


@dataclass(frozen=True)
class Job:
    """One sequence.

    Attributes:
        prompt: token ids.
        params: how to sample, with ``n=1``.
        stops: strings at which the text ends; `params` ends the generation there.
        hidden: ids that are not text.
    """

    prompt: Sequence[int]
    params: SamplingParams
    stops: tuple[str, ...] = ()
    hidden: frozenset[int] = frozenset()


@dataclass(frozen=True)
class News:
    """What came of one sequence.

    Attributes:
        index: which one.
        pieces: in order.
        output: at its end, with the reason.
        stop: the stop string that ended its text.
    """

    index: int
    pieces: list[Piece] = field(default_factory=list)
    output: GenerationOutput | None = None
    stop: str | None = None


class Generation:
    """Submits sequences, all or none.

    Args:
        server: has the engine.
        jobs: the sequences.
        priority, owner: see `PagedEngine.submit`.
        names: under which it can be aborted.

    Raises:
        ConfigError: one of them cannot be served.
        QueueFullError: too many wait.
        ClosedError: the server shuts down.
    """

    def __init__(
        self,
        server: ServerState,
        jobs: Sequence[Job],
        priority: int = 0,
        owner: str = "",
        names: Sequence[str] = (),
    ) -> None:
        if server.closing:
            raise ClosedError("the server is shutting down")
        self._server, self._jobs, self._names = server, jobs, names
        self._streams: list[Stream] = []
        self._ended: set[int] = set()
        self._began = time.monotonic()
        try:
            for job in jobs:
                self._streams += server.engine.submit(job.prompt, job.params, priority=priority, owner=owner)
        except BaseException:
            self.cancel()
            raise
        for name in names:
            server.open.setdefault(name, []).append(self)
        for job in jobs:
            for observer in server.observers:
                observer.submitted(len(job.prompt), job.params.max_new_tokens)

    def cancel(self) -> None:
        """Ends what has not ended yet."""
        for index, stream in enumerate(self._streams):
            stream.cancel()
            if len(self._streams) == len(self._jobs):  # else they were never announced
                self._end(index, "abort", None)

    def _end(self, index: int, reason: str, output: GenerationOutput | None) -> None:
        if index not in self._ended:
            self._ended.add(index)
            for observer in self._server.observers:
                observer.finished(reason, time.monotonic() - self._began, output)
            if len(self._ended) == len(self._jobs):
                self._close()

    def _close(self) -> None:
        for name in self._names:
            others = self._server.open[name]
            others.remove(self)
            if not others:
                del self._server.open[name]

    async def news(self) -> AsyncIterator[News]:
        """Yields what comes, of all sequences as it comes, until all have ended.

        Whoever reads slowly gets more at a time. Sequences that are not read to their end are cancelled.

        Raises:
            Exception: what made a sequence fail.
        """
        ready: asyncio.Queue[News | Exception] = asyncio.Queue(1)
        readers = [asyncio.create_task(self._read(index, ready)) for index in range(len(self._streams))]
        running = len(readers)
        try:
            while running:
                news = await ready.get()
                if isinstance(news, Exception):
                    raise news
                running -= news.output is not None
                yield news
        finally:
            self.cancel()
            for reader in readers:
                reader.cancel()

    async def _read(self, index: int, ready: asyncio.Queue[News | Exception]) -> None:
        job, stream = self._jobs[index], self._streams[index]
        reader = Reader(self._server.tokenizer, job.stops, job.hidden)
        observers, last, first = self._server.observers, self._began, True
        try:
            async for delta in stream:
                now = time.monotonic()
                if delta.tokens:
                    for observer in observers:
                        observer.received(len(delta.tokens), now - last, first)
                    last, first = now, False
                pieces = reader.push(delta.tokens)
                output = None
                if delta.finish_reason is not None:
                    pieces += reader.finish()
                    output = stream.result()
                    self._end(index, output.finish_reason, output)
                if pieces or output is not None:
                    await ready.put(News(index, pieces, output, reader.stop))
        except Exception as error:  # of this sequence; whoever reads the news gets it
            self._end(index, "error", None)
            await ready.put(error)
