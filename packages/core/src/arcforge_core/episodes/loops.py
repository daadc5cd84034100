"""Event loops inside another one's callback: a notebook runs its cells, and so what they call, in a loop."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # for third-party loops and tasks: docs, asyncio, Extending
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def outer_loop_waits() -> Iterator[None]:
    """Lets the block run an event loop where one is running, which then waits as for any other blocking call."""
    outer = asyncio._get_running_loop()
    if outer is None:
        yield
        return
    task = asyncio.current_task(outer)
    if task is not None:
        _leave_task(outer, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        if task is not None:
            _enter_task(outer, task)


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine as `asyncio.run` does; inside a running loop, too."""
    with outer_loop_waits():
        return asyncio.run(work)
