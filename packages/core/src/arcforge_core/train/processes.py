"""Plain values and gradients that processes exchange, and their parts of common work.

Torchrun starts them, and Lightning or `connected` connects them; before that, and without it, there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from arcforge_core.errors import ArcforgeError

T = TypeVar("T")


def place() -> tuple[int, int]:
    """Returns the number of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def first() -> bool:
    """Returns whether this process is the one that writes and speaks."""
    return place()[0] == 0


def gather(value: T) -> list[T]:
    """Returns what each process has, in order; all call it."""
    _, count = place()
    if count == 1:
        return [value]
    found: list[T | None] = [None] * count
    dist.all_gather_object(found, value)
    return found  # type: ignore[return-value]  # all are there


def part(items: Sequence[T]) -> Sequence[T]:
    """Returns this process's part."""
    rank, count = place()
    return items[rank::count]


def whole(items: Sequence[T]) -> list[T]:
    """Returns the items of which each process has its `part`."""
    parts = gather(items)
    return [parts[n % len(parts)][n // len(parts)] for n in range(sum(map(len, parts)))]


@contextmanager
def connected(hours: float = 12.0) -> Iterator[None]:
    """Connects what torchrun started, for a job without Lightning, over the hosts' network (gloo), while it is open.

    Args:
        hours: the longest time that one process may wait for another.

    Raises:
        ArcforgeError: another process ended.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1 or dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", timeout=timedelta(hours=hours))
    try:
        yield
    except RuntimeError as error:
        if "by peer" not in str(error):  # gloo's only sign: closed, or reset
            raise
        raise ArcforgeError("another process of this job has ended; its own message says why") from error
    finally:
        dist.destroy_process_group()


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
