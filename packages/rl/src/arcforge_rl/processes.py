"""Processes that share the work of a step: each samples and learns from its part, and all know everything.

Torchrun starts them and Lightning connects them; before that, and without it, there is one. What they exchange are
rollouts and streams, so that scoring, curricula and figures are those of one process; and gradients, which are summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from arcforge_core.contracts.algorithm import Trace

T = TypeVar("T")


def place() -> tuple[int, int]:
    """Returns the number of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def part(items: Sequence[T]) -> Sequence[T]:
    """Returns this process's part."""
    rank, count = place()
    return items[rank::count]


def gather(value: T) -> list[T]:
    """Returns what each process has, in order; all call it."""
    _, count = place()
    if count == 1:
        return [value]
    found: list[T | None] = [None] * count
    dist.all_gather_object(found, value)
    return found  # type: ignore[return-value]  # all are there


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


def add_gradients(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Sums gradients over all processes. Parameters that have none anywhere still have none."""
    if place()[1] == 1:
        return
    named = dict(parameters)
    used = set().union(*gather({name for name, parameter in named.items() if parameter.grad is not None}))
    waits = []
    for name in sorted(used):
        parameter = named[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        waits.append(dist.all_reduce(parameter.grad, async_op=True))
    for wait in waits:
        wait.wait()
