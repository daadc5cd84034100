"""Jobs timed in rounds that alternate, and ratios with their range over whole rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Job = Callable[[], Any]
"""One piece of work. A job with an attribute `seconds` sets it to the part of the call that counts."""


@dataclass(frozen=True)
class Ratio:
    """How many times as long one side takes as the other: the ratio of medians, and the range over rounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:9.2f}" + (f"  ({self.low:.2f} to {self.high:.2f})" if self.low < self.high else "")


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Returns `over / under` of seconds by round, as many on both sides."""
    by_round = [a / b for a, b in zip(over, under, strict=True)]
    return Ratio(statistics.median(over) / statistics.median(under), min(by_round), max(by_round))


def timed(job: Job) -> float:
    """Returns the seconds of a call, or of the part that counts."""
    start = time.perf_counter()
    job()
    took: float = getattr(job, "seconds", time.perf_counter() - start)
    return took


def in_turns(jobs: Mapping[str, Job], rounds: int) -> dict[str, list[float]]:
    """Returns each job's seconds by round; the jobs alternate, and one more round before warms up."""
    found = [{name: timed(job) for name, job in jobs.items()} for _ in range(rounds + 1)]
    return {name: [seconds[name] for seconds in found[1:]] for name in jobs}


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the median of each job's seconds."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def add(report: dict[str, Any], ratios: Mapping[str, Ratio | float]) -> None:
    """Writes ratios into a report: `ratios`, and `ranges` of those that have one."""
    for name, found in ratios.items():
        if isinstance(found, Ratio):
            report.setdefault("ranges", {})[name] = [found.low, found.high]
            found = found.value
        report.setdefault("ratios", {})[name] = found


def show(report: Mapping[str, Any]) -> None:
    """Prints the ratios of a report."""
    for name, value in report["ratios"].items():
        print(f"{name:<28}{Ratio(value, *report.get('ranges', {}).get(name, (value, value)))}")
