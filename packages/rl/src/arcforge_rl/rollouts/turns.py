"""Many programs, one engine: it is asked when every program waits for it, for all of them at once.

So what is in a batch depends on the programs alone, not on how quick their tools are, and an engine that answers the
same for the same batch makes the same rollouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams

T = TypeVar("T")


async def side_by_side(programs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs programs and returns what they return; the first error ends them all, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(program) for program in programs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]


@dataclass
class _Request:
    number: int
    prompt: Sequence[int]
    params: SamplingParams
    answer: asyncio.Future[GenerationOutput]


@dataclass
class Turns:
    """Takes programs' requests to an engine.

    Attributes:
        engine: None where nobody asks.
    """

    engine: Engine | None
    _playing: int = 0
    _waiting: list[_Request] = field(default_factory=list)

    async def play(self, programs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Runs programs side by side and returns what they return; the first error ends them all."""
        self._playing = len(programs)
        return await side_by_side([self._one(program) for program in programs])

    async def ask(self, number: int, prompt: Sequence[int], params: SamplingParams) -> GenerationOutput:
        """Returns what the engine samples behind a prompt; `number` is the program's, and decides its place."""
        request = _Request(number, prompt, params, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._serve_if_all_wait()
        return await request.answer

    async def _one(self, program: Coroutine[Any, Any, T]) -> T:
        try:
            return await program
        finally:
            self._playing -= 1
            self._serve_if_all_wait()

    def _serve_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) == self._playing:
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Asks the engine, in this thread: every program waits, and OpenMP keeps threads for each that computes.

        Those of a second one would be more than there are cores, after which all of them sleep between any two products
        instead of waiting awake, and a step takes several times as long.
        """
        requests, self._waiting = sorted(self._waiting, key=lambda request: request.number), []
        assert self.engine is not None
        prompts, params = [request.prompt for request in requests], [request.params for request in requests]
        try:
            outputs = self.engine.generate(prompts, params)
        except Exception as error:
            for request in requests:
                request.answer.set_exception(error)
            return
        for request, output in zip(requests, outputs, strict=True):
            if not request.answer.done():  # its program was cancelled
                request.answer.set_result(output)
