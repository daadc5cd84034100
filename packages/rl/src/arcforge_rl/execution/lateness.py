"""Whose doing it is that a verifier exceeds its time limit: that of the work which it judges, or the machine's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from arcforge_core.contracts.environment import NoVerdict

T = TypeVar("T")


async def verdict_in_time(
    judge: Callable[[], Awaitable[T | None]], control: Callable[[], Awaitable[bool]], what: str
) -> T | None:
    """Returns the verdict on some work; None if the work keeps its verifier from ending in time.

    A verifier that is late runs on a control: the reference's work in a fresh world, alone, so that the judged work
    cannot slow it. If that ends in time, the machine is healthy, and the work is judged once more; a second time limit
    is then the work's doing. An agent that slows its verifier gains nothing, and a busy machine harms no agent.

    Args:
        judge: runs the verifier on the work; None when it exceeded its time limit.
        control: runs the same verifier on the control; whether it ended within the same limit.
        what: the verifier, in words.

    Raises:
        NoVerdict: the control is late too.
    """
    if (found := await judge()) is not None:
        return found
    if not await control():
        raise NoVerdict(f"{what} did not end in time, neither over the agent's work nor over the reference's")
    return await judge()
