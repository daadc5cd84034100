"""Sandboxes for environments: blocking work in a thread, with a sandbox that nobody else has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_rl.sandbox.desk import Desk, Place, shared_desk

T = TypeVar("T")
_FIRST = threading.Lock()
ATTEMPTS = 2
"""How often work is begun whose sandbox breaks."""


def open_desk() -> Desk:
    """Returns this process's desk, begun once.

    Raises:
        ConfigError: untrusted code cannot be run here.
    """
    with _FIRST:
        return shared_desk()


async def in_sandbox(work: Callable[[Place], T]) -> T:
    """Runs work in a thread, with a fresh sandbox that is gone afterwards.

    Raises:
        ConfigError: untrusted code cannot be run here.
        SandboxFault: the sandbox broke, twice.
    """

    def attempt() -> T:
        place = open_desk().place()
        try:
            return work(place)
        finally:
            place.clear()

    for _ in range(ATTEMPTS - 1):
        try:
            return await asyncio.to_thread(attempt)
        except SandboxFault:
            continue
    return await asyncio.to_thread(attempt)
