"""The sequences of one request in the engine, read as pieces: the only place that consumes streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.contracts.serving_engine import TokenStream
from arcforge_serving.engine.errors import ClosedError
from arcforge_serving.server.shared.detokenize import Reader, TokenReader
from arcforge_serving.server.shared.jobs import Job, Update
from arcforge_serving.server.shared.state import ServerState


class Generation:
    """Submits the sequences of one request, all or none.

    Args:
        server: has the engine.
        jobs: the sequences.
        priority, owner, salt, session: see `ServingEngine.submit`.
        names: ids under which it can be aborted.

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
        salt: str = "",
        session: str = "",
    ) -> None:
        if server.closing:
            raise ClosedError("the server is shutting down")
        self._server, self._jobs, self._names = server, jobs, names
        self._streams: list[TokenStream] = []
        self._ended: set[int] = set()
        self._began = time.monotonic()
        try:
            for job in jobs:
                self._streams += server.engine.submit(
                    job.prompt, job.params, priority=priority, owner=owner, salt=salt, session=session
                )
        except BaseException:
            self.cancel()
            raise
        for name in names:
            server.open.setdefault(name, []).append(self)
        server.turns.began(self)

    def cancel(self) -> None:
        """Cancels the sequences that have not ended."""
        for index, stream in enumerate(self._streams):
            stream.cancel()
            if len(self._streams) == len(self._jobs):  # else submitting failed and nothing was counted
                self._end(index, "abort", None)

    def _end(self, index: int, reason: str, output: GenerationOutput | None) -> None:
        if index not in self._ended:
            self._ended.add(index)
            self._server.metrics.finished(reason, time.monotonic() - self._began, output)
            if len(self._ended) == len(self._jobs):
                self._close()

    def _close(self) -> None:
        for name in self._names:
            others = self._server.open[name]
            others.remove(self)
            if not others:
                del self._server.open[name]

    async def updates(self) -> AsyncIterator[Update]:
        """Yields updates of all sequences as they arrive, until all have ended.

        A slow reader receives larger updates. Sequences that are not read to their end are cancelled.

        Raises:
            Exception: the error of a sequence.
        """
        ready: asyncio.Queue[Update | Exception] = asyncio.Queue(1)
        readers = [asyncio.create_task(self._read(index, ready)) for index in range(len(self._streams))]
        running = len(readers)
        try:
            while running:
                update = await ready.get()
                if isinstance(update, Exception):
                    raise update
                running -= update.output is not None
                yield update
        finally:
            self.cancel()
            for reader in readers:
                reader.cancel()

    async def _read(self, index: int, ready: asyncio.Queue[Update | Exception]) -> None:
        job, stream = self._jobs[index], self._streams[index]
        hide = job.params.min_new_tokens
        reader = Reader(self._server.tokenizer, job.stops, job.hidden, hide) if job.text else TokenReader()
        metrics, last, first = self._server.metrics, self._began, True
        try:
            async for delta in stream:
                now = time.monotonic()
                if delta.tokens:
                    metrics.received(len(delta.tokens), now - last, first)
                    last, first = now, False
                pieces = reader.push(delta.tokens)
                output = None
                if delta.finish_reason is not None:
                    pieces += reader.finish()
                    output = stream.result()
                    self._server.turns.ended(output, reader.stop)
                    self._end(index, output.finish_reason, output)
                if pieces or output is not None:
                    await ready.put(Update(index, pieces, output, reader.stop))
        except Exception as error:  # of this sequence; raised to the reader of the updates
            self._end(index, "error", None)
            self._server.turns.failed()
            await ready.put(error)
