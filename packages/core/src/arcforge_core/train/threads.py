"""The number of CPU threads of a run, chosen from measured rates while other programs take cores.

Threads of a matrix product wait for each other, so that one core taken by another program can make a step many times
slower with two threads than with one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arcforge_core.files.cgroups import cgroup_quota

STAT = Path("/proc/stat")
COLLAPSED = 0.6
"""A rate below this share of the best one with as many threads makes the control try fewer."""
SPARE = 0.75
"""Share of a core that must be free before a thread is added."""
CROWDED = 0.5
"""Share of a core that the first threads may lack."""
PAUSE, LONGEST_PAUSE = 30.0, 480.0
"""Seconds until another number is tried after one that was not faster; doubles each time."""
WORTH_SAYING = 0.1
"""Share of busy time from which console and report mention it."""


class CoreClock:
    """Measures the cores that other programs take, of those that this process may run on.

    Args:
        wall: a clock in seconds.

    Attributes:
        cores: that this process may use, by affinity and quotas; of the last call of `free`.
    """

    def __init__(self, wall: Callable[[], float] = time.monotonic) -> None:
        self.wall = wall
        self.cores, self._last = self._allowed(), self._read()

    def free(self) -> float | None:
        """Returns the cores that other programs left since the last call, on average; None where nothing is known."""
        before, self._last = self._last, self._read()
        self.cores = self._allowed()
        if before is None or self._last is None or self._last[0] <= before[0]:
            return None
        seconds, busy, own = (now - then for now, then in zip(self._last, before, strict=True))
        return self.cores - max(0.0, (busy - own) / seconds)

    def _allowed(self) -> float:
        """Returns the cores of now: a container's quota can change while it runs."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, cgroup_quota())

    def _read(self) -> tuple[float, float, float] | None:
        """Returns the time, the seconds that all programs and the system ran on the cores, and this process's own."""
        if not STAT.exists():
            return None
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split() for line in STAT.read_text().splitlines() if line.split(" ", 1)[0] in allowed]
        # user nice system idle iowait irq softirq steal; guests are part of user
        ticks = sum(int(row[column]) for row in rows for column in (1, 2, 3, 6, 7, 8))
        return self.wall(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()


class ThreadControl:
    """Chooses a number of threads from the rates of periods of training.

    It takes fewer when the rate collapses, or when other programs leave too few cores from the start, and more when
    cores are free again; a number that turns out not to be faster is taken back.

    Args:
        most: threads on a quiet machine.

    Attributes:
        threads: the number to use now.
    """

    def __init__(self, most: int) -> None:
        self.most = self.threads = self._wanted = most
        self._best: dict[int, float] = {}
        self._tried_from: tuple[int, float] | None = None
        self._time, self._not_before, self._pause = 0.0, 0.0, PAUSE

    def allow(self, cores: float) -> str:
        """Limits the threads to the cores that this process may use now, and returns a line about a change."""
        self.most = min(self._wanted, max(1, int(cores)))
        if self.threads <= self.most:
            return ""
        was, self.threads, self._tried_from = self.threads, self.most, None
        return f"this process may use {cores:g} cores now: {was} -> {self.threads} threads, slower"

    def add(self, rate: float, seconds: float, free: float | None) -> str:
        """Adds a period and sets `threads`.

        Args:
            rate: tokens per second.
            seconds: length of the period.
            free: cores that other programs left to this one; None if unknown.

        Returns:
            A line about a change, or an empty text.
        """
        self._time += seconds
        if self._tried_from is not None:
            return self._judge(rate, self._tried_from)
        best = self._best.get(self.threads)
        self._best[self.threads] = max(rate, best or 0.0)
        if self._time < self._not_before:
            return ""
        left = "" if free is None else f"other programs leave {free:.1f} cores, "
        collapsed = rate < COLLAPSED * best if best is not None else free is not None and free < self.threads - CROWDED
        if self.threads > 1 and collapsed:
            fewer = self.threads // 2 if free is None else min(round(free), self.threads - 1)
            was = f" after {best:,.0f}" if best is not None else ""
            return self._try(max(1, fewer), rate, f"{left}{rate:,.0f} tokens/s{was}")
        if self.threads < self.most and (free is None or free >= self.threads + SPARE):
            more = 2 * self.threads if free is None else int(free + 1 - SPARE)
            return self._try(min(self.most, more), rate, f"{left}{rate:,.0f} tokens/s")
        return ""

    def _try(self, threads: int, rate: float, reason: str) -> str:
        self._tried_from, was, self.threads = (self.threads, rate), self.threads, threads
        return f"{reason}: {was} -> {threads} threads"

    def _judge(self, rate: float, before: tuple[int, float]) -> str:
        """Keeps the number that was tried if it is faster; otherwise returns to the one before for a while."""
        self._tried_from = None
        tried, (threads, slower) = self.threads, before
        if rate > slower:
            self._best[tried], self._pause = rate, PAUSE
            self._not_before = self._time + (PAUSE if tried < self.most else 0.0)
            return ""
        self.threads, self._best[threads] = threads, slower
        self._not_before, self._pause = self._time + self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return f"{rate:,.0f} tokens/s with {tried} threads is not faster: {tried} -> {threads} threads"


def busy_text(figures: Mapping[str, Any]) -> str:
    """Returns a sentence if the machine was busy with other programs during a run; empty otherwise."""
    share = figures.get("busy_share")
    if not isinstance(share, float) or share < WORTH_SAYING:
        return ""
    taken, cores = figures["cores_taken_by_others"], figures["cores"]
    return (
        f"The machine was busy for {share:.0%} of the training time: other programs took {taken:.1f} of {cores:g} "
        "cores. On a quiet machine training is faster."
    )
