"""Torch's threads follow the cores that a process may use: a container's quota can shrink while it runs.

Threads of a product wait for each other, so a thread without a core makes every step many times slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from arcforge_core.console.progress import say
from arcforge_core.ops.processor import allowed_cores

PERIOD = 5.0
"""Seconds between two looks at the quota."""


class CoreLimit:
    """Reduces torch's threads while cores are missing, and restores them afterwards unless someone else has set them.

    A number of threads above that of cores was someone's choice and stays, as long as no core is taken away.

    Args:
        work: the work that becomes slower, for the message.
        wall: a clock in seconds.
    """

    def __init__(self, work: str, wall: Callable[[], float] = time.monotonic) -> None:
        self.work, self.wall = work, wall
        self.cores = allowed_cores()
        self._reduced: tuple[int, int] | None = None  # threads before and after
        self._next = wall() + PERIOD

    def follow(self) -> None:
        """Looks at most every `PERIOD` seconds, sets this thread's number, and says in one line what changed."""
        if (now := self.wall()) < self._next:
            return
        self._next = now + PERIOD
        cores, threads = allowed_cores(), torch.get_num_threads()
        if cores < self.cores and threads > cores:
            self._reduced = (threads if self._reduced is None else self._reduced[0]), cores
            self._set(cores, threads, cores, ", slower")
        elif self._reduced is not None and cores > self._reduced[1]:
            before, after = self._reduced
            wanted = before if cores >= self.cores else min(before, cores)
            self._reduced = None if wanted == before or threads != after else (before, wanted)
            if threads == after:
                self._set(wanted, threads, cores)

    def _set(self, wanted: int, threads: int, cores: int, effect: str = "") -> None:
        torch.set_num_threads(wanted)
        say(f"{self.work}: this process may use {cores} cores now: {threads} -> {wanted} threads{effect}")
