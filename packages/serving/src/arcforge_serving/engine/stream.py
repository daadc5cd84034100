"""A caller's view of a sequence: its tokens as they are generated, and its output."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from arcforge_core.contracts.engine import GenerationOutput, Token, TokenDelta


class Stream:
    """A sequence that is being generated, for one reader: a thread (`for`) or a coroutine (`async for`).

    A slow reader receives larger deltas; nothing waits for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tokens: list[Token] = []
        self._read = 0
        self._output: GenerationOutput | None = None
        self._error: Exception | None = None
        self._wake: Callable[[], object] | None = None
        self._at_end: Callable[[], object] | None = None
        self._cancel: Callable[[], None] = lambda: None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._output is not None or self._error is not None

    def cancel(self) -> None:
        """Ends the sequence with the reason ``abort``, in whatever state it is; no effect on one that is done."""
        self._cancel()

    def result(self, timeout: float | None = None) -> GenerationOutput:
        """Waits for the end and returns the output.

        Raises:
            Exception: the sequence's error.
            TimeoutError: it is not done after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the sequence is not done after {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._output is not None
        return self._output

    def __iter__(self) -> Iterator[TokenDelta]:
        """Yields deltas until the end; raises the sequence's error."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_next)
                delta = self._next()
            yield delta
            if delta.finish_reason is not None:
                return

    async def output(self) -> GenerationOutput:
        """As `result`, for a coroutine; it is woken once, at the end."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self._at_end = lambda: loop.call_soon_threadsafe(ended.set)
            if self.done:
                ended.set()
        try:
            await ended.wait()
        finally:
            with self._changed:
                self._at_end = None
        return self.result(0.0)

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        """As `__iter__`, for a coroutine."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self._wake = lambda: loop.call_soon_threadsafe(changed.set)
        try:
            while True:
                with self._changed:
                    changed.clear()
                    delta = self._next() if self._has_next() else None
                if delta is None:
                    await changed.wait()
                    continue
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            with self._changed:
                self._wake = None

    # ---- the engine's side -------------------------------------------------------------------------------------------

    def on_cancel(self, cancel: Callable[[], None]) -> None:
        """Sets what `cancel` calls."""
        self._cancel = cancel

    def put(self, token: Token) -> None:
        """Hands a token to the reader."""
        with self._changed:
            self._tokens.append(token)
            self._notify()

    def close(self, output: GenerationOutput, last: Token | None = None) -> None:
        """Ends the stream; its last token, if it is handed over here, reaches the reader together with the end."""
        with self._changed:
            if last is not None:
                self._tokens.append(last)
            self._output = output
            self._notify()

    def fail(self, error: Exception) -> None:
        """Ends the stream with an error."""
        with self._changed:
            self._error = error
            self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        for wake in (self._wake, self._at_end if self.done else None):
            if wake is not None:
                try:
                    wake()
                except RuntimeError:  # the reader's loop was closed: there is no reader to wake
                    self._wake = self._at_end = None

    def _has_next(self) -> bool:
        return self.done or self._read < len(self._tokens)

    def _next(self) -> TokenDelta:
        if self._error is not None:
            raise self._error
        tokens = self._tokens[self._read :]
        self._read += len(tokens)
        return TokenDelta(tokens, None if self._output is None else self._output.finish_reason)
