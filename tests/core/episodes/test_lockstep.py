import asyncio
from typing import Any

import pytest

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.episodes.lockstep import Lockstep

PARAMS = SamplingParams(max_new_tokens=1)


class Counting:
    """Answers with the number of the call, and notes what was asked together."""

    weight_version = 0

    def __init__(self, fails_at: int | None = None) -> None:
        self.batches: list[list[int]] = []
        self.fails_at = fails_at

    def generate(self, prompts: Any, params: Any) -> list[GenerationOutput]:
        self.batches.append([prompt[0] for prompt in prompts])
        if len(self.batches) == self.fails_at:
            raise RuntimeError("out of memory")
        return [GenerationOutput([len(self.batches)], [-1.0], "stop", 0) for _ in prompts]

    def update_weights(self, state: Any, *, version: int | None = None, checksum: str | None = None) -> None:
        raise NotImplementedError


async def program(lockstep: Lockstep, number: int, rounds: int, pause: float) -> list[int]:
    seen = []
    for _ in range(rounds):
        await asyncio.sleep(pause)
        seen.append((await lockstep.ask(number, [number], PARAMS)).token_ids[0])
    return seen


def play(engine: Counting, rounds: list[int], pauses: list[float]) -> list[list[int]]:
    lockstep = Lockstep(engine)

    async def counted(number: int, of: int, pause: float) -> list[int]:
        with lockstep.program():
            return await program(lockstep, number, of, pause)

    async def everything() -> list[list[int]]:
        programs = [counted(n, of, pause) for n, (of, pause) in enumerate(zip(rounds, pauses, strict=True))]
        return list(await asyncio.gather(*programs))

    return asyncio.run(everything())


def test_the_engine_is_asked_once_for_all_that_wait() -> None:
    engine = Counting()
    assert play(engine, [1, 3, 2], [0.0] * 3) == [[1], [1, 2, 3], [1, 2]]
    assert engine.batches == [[0, 1, 2], [1, 2], [1]]


@pytest.mark.parametrize("pauses", [[0.03, 0.0, 0.01], [0.0, 0.02, 0.0], [0.01, 0.02, 0.03]])
def test_batches_do_not_depend_on_how_quick_programs_are(pauses: list[float]) -> None:
    engine = Counting()
    play(engine, [2, 3, 1], pauses)
    assert engine.batches == [[0, 1, 2], [0, 1], [1]]


def test_programs_that_ask_nothing_hold_nobody_up() -> None:
    engine = Counting()
    assert play(engine, [0, 2, 0], [0.0] * 3) == [[], [1, 2], []]


def test_an_engine_that_fails_ends_all_programs_with_its_error() -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        play(Counting(fails_at=2), [3, 3], [0.0, 0.0])
