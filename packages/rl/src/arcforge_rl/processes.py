"""Processes that share the work of a step: each samples and learns from its part, and all know everything.

They exchange rollouts and streams, so that scoring, curricula and figures are those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from arcforge_core.contracts.algorithm import Trace
from arcforge_core.train.processes import gather, place

T = TypeVar("T")


def part(items: Sequence[T]) -> Sequence[T]:
    """Returns this process's part."""
    rank, count = place()
    return items[rank::count]


def whole(items: Sequence[T]) -> list[T]:
    """Returns the items of which each process has its `part`."""
    parts = gather(items)
    return [parts[n % len(parts)][n // len(parts)] for n in range(sum(map(len, parts)))]


def share_stream(traces: Sequence[Trace], name: str) -> None:
    """Gives all processes a stream that each has written into its part of the same traces, where it is there."""
    if place()[1] == 1:
        return
    streams = whole([[branch.streams.get(name) for branch in trace.branches] for trace in part(traces)])
    for trace, of_trace in zip(traces, streams, strict=True):
        for branch, stream in zip(trace.branches, of_trace, strict=True):
            if stream is not None:
                branch.streams[name] = stream
