"""One exchange between processes at a time, judged by each of them: every process knows what all of them send.

Shapes: W processes, R rows, 3 columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PAUSE = 0.3
"""Seconds that one process comes later than the others to a barrier."""
TAIL = 1
"""Rows that are left when a reduced tensor is divided over the processes."""


@dataclass(frozen=True)
class Rank:
    """One process of an exchange.

    Attributes:
        number: its rank.
        world: number of processes.
        device: torch device of its tensors.
        dtype: dtype of the values; all of them are whole numbers, so every sum is exact.
        seed: of values and splits; the same in every process.
        store: a `torch.distributed.Store` that the processes share.
    """

    number: int
    world: int
    device: str
    store: Any
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def generator(self, rank: int) -> torch.Generator:
        """Returns the generator of a process's values."""
        return torch.Generator().manual_seed(1000 * self.seed + rank)

    def values(self, rank: int, rows: int) -> Tensor:
        """Returns what process `rank` sends, [R, 3] on the host; integers exceed 32 bits."""
        base = torch.randint(-60, 60, (rows, 3), generator=self.generator(rank))
        return (base + (base.sign() << 40) if self.dtype == torch.int64 else base).to(self.dtype)

    def there(self, values: Tensor) -> Tensor:
        """Copies values to the device."""
        return values.to(self.device, copy=True)

    def empty(self, rows: int) -> Tensor:
        """Returns uninitialised rows on the device."""
        return torch.empty(rows, 3, dtype=self.dtype, device=self.device)


def all_reduce(me: Rank) -> str:
    """Sums over all processes."""
    x = me.there(me.values(me.number, 5))
    dist.all_reduce(x)
    return differs("the sum", x, sum_of(me, 5))


def all_gather(me: Rank) -> str:
    """Collects the rows of all processes, in their order."""
    own = me.there(me.values(me.number, 2))
    outs = [me.empty(2) for _ in range(me.world)]
    dist.all_gather(outs, own)
    wanted = torch.cat([me.values(rank, 2) for rank in range(me.world)])
    return differs("the rows", torch.cat(outs), wanted) or differs("the input", own, me.values(me.number, 2))


def reduce_scatter(me: Rank) -> str:
    """Sums rows whose number is no multiple of the processes: the last part is filled up with zeros."""
    rows = 2 * me.world + TAIL
    share = -(-rows // me.world)

    def padded(values: Tensor) -> Tensor:
        return torch.cat([values, values.new_zeros(share * me.world - rows, 3)])

    parts = list(me.there(padded(me.values(me.number, rows))).split(share))
    out = me.empty(share)
    dist.reduce_scatter(out, parts)
    return differs("the part", out, padded(sum_of(me, rows)).split(share)[me.number])


def broadcast(me: Rank) -> str:
    """Takes over the rows of the last process."""
    x = me.there(me.values(me.number, 3))
    dist.broadcast(x, me.world - 1)
    return differs("the rows", x, me.values(me.world - 1, 3))


def all_to_all(me: Rank) -> str:
    """Sends two rows to each process."""
    return _exchanged(me, [[2] * me.world for _ in range(me.world)])


def uneven_all_to_all(me: Rank) -> str:
    """Sends other numbers of rows to each process, and back: some pairs exchange nothing, one process gets nothing."""
    splits = torch.randint(0, 5, (me.world, me.world), generator=me.generator(-1))
    splits[0, -1], splits[-1, 0] = 0, 3
    faults = []
    for silent in (None, 0, me.world - 1):
        if silent is not None:
            splits[:, silent] = 0
        faults += [_exchanged(me, table.tolist()) for table in (splits, splits.T)]
    return next(filter(None, faults), "")


def _exchanged(me: Rank, splits_WW: list[list[int]]) -> str:
    """Sends ``splits_WW[i][j]`` rows from process i to j."""

    def sent(rank: int) -> list[Tensor]:
        return list(me.values(rank, sum(splits_WW[rank])).split(splits_WW[rank]))

    own, receives = torch.cat(sent(me.number)), [row[me.number] for row in splits_WW]
    given, out = me.there(own), me.empty(sum(receives))
    dist.all_to_all_single(out, given, receives, splits_WW[me.number])
    wanted = torch.cat([sent(rank)[me.number] for rank in range(me.world)])
    which = f"the rows of {receives}"
    return differs(which, out, wanted) or differs("the input", given, own)


def barrier(me: Rank) -> str:
    """Waits for the last process, whose clock is this machine's."""
    if me.number == me.seed % me.world:
        time.sleep(PAUSE)
    me.store.set(f"{me.dtype} {me.seed} {me.number}", str(time.monotonic()))
    dist.barrier()
    left = time.monotonic()
    came = max(float(me.store.get(f"{me.dtype} {me.seed} {rank}")) for rank in range(me.world))
    return "" if left >= came else f"it left {came - left:.2f} s before the last process came"


EXCHANGES: dict[str, Callable[[Rank], str]] = {
    one.__name__: one
    for one in (all_reduce, all_gather, broadcast, reduce_scatter, all_to_all, uneven_all_to_all, barrier)
}
"""By the names in `arcforge_core.contracts.device.COLLECTIVES`; each returns the fault that its process sees."""


def sum_of(me: Rank, rows: int) -> Tensor:
    """Returns the sum of all processes' values."""
    return torch.stack([me.values(rank, rows) for rank in range(me.world)]).sum(0).to(me.dtype)


def differs(what: str, got: Tensor, wanted: Tensor) -> str:
    """Returns which row is wrong; empty if none is."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{what}: {tuple(got.shape)} {got.dtype}, not {tuple(wanted.shape)} {wanted.dtype}"
    here = got.cpu()
    wrong = (here != wanted).any(-1).nonzero().flatten().tolist()
    return f"{what}: row {wrong[0]} is {here[wrong[0]].tolist()}, not {wanted[wrong[0]].tolist()}" if wrong else ""


def judge(name: str, me: Rank, dtypes: tuple[torch.dtype, ...]) -> str:
    """Runs an exchange in every dtype, twice with other values, and returns the first fault, or what it raised.

    A process that finds a fault continues, because the others wait for it in the next exchange.
    """
    found = ""
    for dtype in dtypes:
        for again in (0, 1):
            one = replace(me, dtype=dtype, seed=2 * me.seed + again)
            try:
                fault = EXCHANGES[name](one)
            except Exception as error:  # whatever the vendor's library raises
                fault = f"it raises {type(error).__name__}: {str(error).splitlines()[0]}"
            if fault and not found:
                found = f"rank {me.number}, {str(dtype).removeprefix('torch.')}: {fault}"
    return found
