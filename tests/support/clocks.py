"""Clocks that tests move: a limit of time is reached when the test says so, and never because a machine is busy."""

from __future__ import annotations

import asyncio


class MovedClock:
    """Lets an event loop's clock jump. Tests may move it from any thread; limits should be minutes.

    Args:
        loop: whose clock it is; the running loop by default. It is asyncio's own kind of loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop, self._ahead = loop or asyncio.get_running_loop(), 0.0
        time = self._loop.time
        self._loop.time = lambda: time() + self._ahead  # type: ignore[method-assign]

    def move(self, seconds: float) -> None:
        """Lets some time pass; the loop calls its due timers in the next round."""
        self._ahead += seconds
        self._loop.call_soon_threadsafe(lambda: None)
