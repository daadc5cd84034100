"""Many programs share one engine: it is called when every program waits for it, with all requests together.

So batch composition does not depend on the speed of programs, and a deterministic engine gives deterministic rollouts.
The engine does not wait for programs that await a tool, unless configured to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams
from arcforge_core.contracts.serving_engine import TokenStream
from arcforge_core.episodes.asking import EngineUse
from arcforge_core.episodes.loops import outer_loop_waits

T = TypeVar("T")


class EngineLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stops while an engine computes, so that a blocked loop triggers no timeout.

    Attributes:
        blocked: seconds spent in engines.
    """

    blocked = 0.0

    def time(self) -> float:
        """Returns monotonic seconds without those spent in engines."""
        return super().time() - self.blocked

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Runs until the result is there; inside another loop, too.

        A call that Ctrl-C cut off may have left its request to stop in the queue, where its future was done: the next
        call would take that for its own and end before its result.
        """
        awaited: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        with outer_loop_waits():
            while True:
                try:
                    return super().run_until_complete(awaited)
                except RuntimeError:
                    if awaited.done() or self.is_running() or self.is_closed():
                        raise


@dataclass
class _Request:
    number: int
    prompt: Sequence[int]
    params: SamplingParams
    session: str
    answer: asyncio.Future[GenerationOutput]


@dataclass
class Lockstep:
    """Batches the requests of programs on one event loop.

    Attributes:
        engine: None if no program needs one.
        waits_for_tools: whether the engine waits for programs that are `away`: batch composition then does not depend
            on tool latency, but the slowest tool delays every program.
        use: the time in which the engine computes.
    """

    engine: Engine | None
    waits_for_tools: bool = False
    use: EngineUse = field(default_factory=EngineUse)
    _playing: int = 0
    _waiting: list[_Request] = field(default_factory=list)

    @contextmanager
    def program(self) -> Iterator[None]:
        """Runs the block as a program that the engine waits for."""
        self._playing += 1
        try:
            yield
        finally:
            self._playing -= 1
            self._serve_soon()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Marks the block as waiting for something other than the engine, which does not wait for it."""
        if self.waits_for_tools:
            yield
            return
        self._playing -= 1
        self._serve_soon()
        try:
            yield
        finally:
            self._playing += 1

    async def ask(
        self, number: int, prompt: Sequence[int], params: SamplingParams, session: str = ""
    ) -> GenerationOutput:
        """Samples from the engine after a prompt.

        Args:
            number: of the program; orders the batch.
            prompt: token ids.
            params: how to sample one sequence.
            session: name of the program, for engines that route; see `ServingEngine.submit`.
        """
        request = _Request(number, prompt, params, session, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._serve_soon()
        return await request.answer

    @property
    def _all_wait(self) -> bool:
        # a program may wait for several agents on this engine
        return len({request.number for request in self._waiting}) >= self._playing

    def _serve_soon(self) -> None:
        """Schedules a call of the engine after all ready callbacks: another program may begin, or send a request."""
        if self._waiting and self._all_wait:
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Calls the engine in this thread if all programs still wait.

        OpenMP keeps a thread pool for each computing thread. With two pools there would be more threads than cores:
        they would sleep between products instead of spinning, and a step would take several times as long.
        """
        if not self._waiting or not self._all_wait:
            return
        requests, self._waiting = sorted(self._waiting, key=lambda request: request.number), []
        start, loop = time.monotonic(), asyncio.get_running_loop()
        self.use.change(len(requests))
        try:
            outcomes = self._outcomes(requests)
        finally:
            self.use.change(-len(requests))
            if isinstance(loop, EngineLoop):
                loop.blocked += time.monotonic() - start
        for request, outcome in zip(requests, outcomes, strict=True):
            if request.answer.done():  # its program was cancelled
                continue
            if isinstance(outcome, Exception):
                request.answer.set_exception(outcome)
            else:
                request.answer.set_result(outcome)

    def _outcomes(self, requests: Sequence[_Request]) -> Sequence[GenerationOutput | Exception]:
        """Returns the output or the error of each request: a started engine fails each by itself."""
        engine = self.engine
        assert engine is not None
        if getattr(engine, "started", False):
            streams = [_begun(engine, request) for request in requests]
            return [stream if isinstance(stream, Exception) else _result(stream) for stream in streams]
        try:
            return engine.generate([request.prompt for request in requests], [request.params for request in requests])
        except Exception as error:
            return [error] * len(requests)


def _begun(engine: Any, request: _Request) -> TokenStream | Exception:
    try:
        (stream,) = engine.submit(request.prompt, request.params, session=request.session)
    except Exception as error:
        return error
    found: TokenStream = stream
    return found


def _result(stream: TokenStream) -> GenerationOutput | Exception:
    try:
        return stream.result()
    except Exception as error:
        return error
