"""Whether work leaves an event loop free: the processor time of its longest step, which a busy machine leaves alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest


def longest_step(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> float:
    """Runs the work and returns the longest step of the loop's thread, as a share of all of this process's threads."""
    longest = 0.0
    original = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        nonlocal longest
        start = time.thread_time()
        original(handle)
        longest = max(longest, time.thread_time() - start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        start = time.process_time()
        loop.run_until_complete(work)
        return longest / (time.process_time() - start)
