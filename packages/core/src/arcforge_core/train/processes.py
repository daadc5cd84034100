"""Plain values and gradients that processes exchange.

Torchrun starts them and Lightning connects them; before that, and without it, there is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

T = TypeVar("T")


def place() -> tuple[int, int]:
    """Returns the number of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(value: T) -> list[T]:
    """Returns what each process has, in order; all call it."""
    _, count = place()
    if count == 1:
        return [value]
    found: list[T | None] = [None] * count
    dist.all_gather_object(found, value)
    return found  # type: ignore[return-value]  # all are there


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
