"""Faults of the fake chip's collectives by name, for `arcforge_core.testing.fake_chip.faults.injected`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

c10d = torch.ops.c10d


def _done(result: Any) -> Any:
    """Waits for an exchange: its work is the result, or the last part of it."""
    (result[-1] if isinstance(result, tuple) else result).wait()
    return result


def _keeps_its_own(tensors: list[Tensor], *rest: Any) -> Any:
    """The second process ends with what it had."""
    before = [x.clone() for x in tensors]
    result = _done(c10d.allreduce_.default(tensors, *rest))
    if dist.get_rank() == 1:
        for x, old in zip(tensors, before, strict=True):
            x.copy_(old)
    return result


def _mean(tensors: list[Tensor], *rest: Any) -> Any:
    result = _done(c10d.allreduce_.default(tensors, *rest))
    for x in tensors:
        x.copy_(x / dist.get_world_size())
    return result


def _reversed_ranks(outs: list[list[Tensor]], *rest: Any) -> Any:
    return c10d.allgather_.default([list(reversed(out)) for out in outs], *rest)


def _from_the_first(tensors: list[Tensor], group: Any, root: int, *rest: Any) -> Any:
    return c10d.broadcast_.default(tensors, group, 0, *rest)


def _no_tail(outs: list[Tensor], *rest: Any) -> Any:
    result = _done(c10d.reduce_scatter_.default(outs, *rest))
    if dist.get_rank() == dist.get_world_size() - 1:
        for out in outs:
            out.zero_()
    return result


def _exchange(out: Tensor, given: Tensor, *rest: Any) -> Any:
    return _done(c10d.alltoall_base_.default(out, given, *rest))


def _not_sent(out: Tensor, given: Tensor, *rest: Any) -> Any:
    result = _exchange(out, given, *rest)
    if out.shape == given.shape:
        out.copy_(given)
    return result


def _shifted(out: Tensor, given: Tensor, group: Any, received: list[int], *rest: Any) -> Any:
    """Each empty part takes the place of a row."""
    result = _exchange(out, given, group, received, *rest)
    if len(out):
        out.copy_(out.roll(received.count(0), 0))
    return result


def _last_first(out: Tensor, given: Tensor, group: Any, received: list[int], *rest: Any) -> Any:
    result = _exchange(out, given, group, received, *rest)
    if received and len(set(received)) > 1:
        out.copy_(torch.cat(list(reversed(out.split(received)))))
    return result


def _narrow(out: Tensor, *rest: Any) -> Any:
    result = _exchange(out, *rest)
    if out.dtype == torch.int64:
        out.copy_(out.int())
    return result


def _spoils_its_input(out: Tensor, given: Tensor, *rest: Any) -> Any:
    result = _exchange(out, given, *rest)
    given.zero_()
    return result


def _even_only(out: Tensor, given: Tensor, group: Any, received: list[int], sent: list[int], *rest: Any) -> Any:
    if len({*received, *sent}) > 1 or not sent[0]:
        raise RuntimeError("splits of different sizes are not implemented")
    return _exchange(out, given, group, received, sent, *rest)


EXCHANGE_FAULTS: Mapping[str, Mapping[Any, Callable[..., Any]]] = {
    "the second rank keeps what it had": {c10d.allreduce_.default: _keeps_its_own},
    "a mean for a sum": {c10d.allreduce_.default: _mean},
    "ranks are gathered in reverse": {c10d.allgather_.default: _reversed_ranks},
    "every broadcast is the first rank's": {c10d.broadcast_.default: _from_the_first},
    "the tail is lost": {c10d.reduce_scatter_.default: _no_tail},
    "even parts stay where they are": {c10d.alltoall_base_.default: _not_sent},
    "an empty part shifts the rows": {c10d.alltoall_base_.default: _shifted},
    "uneven parts arrive last first": {c10d.alltoall_base_.default: _last_first},
    "integers are sent with 32 bits": {c10d.alltoall_base_.default: _narrow},
    "an exchange spoils its input": {c10d.alltoall_base_.default: _spoils_its_input},
    "uneven parts are refused": {c10d.alltoall_base_.default: _even_only},
}
