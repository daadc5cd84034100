"""Faults of the fake chip by name: each replaces parts of the chip by ones that a vendor could ship.

with injected("the optimizer forgets its momentum"):
    ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from arcforge_core.testing.fake_chip.device import chip
from arcforge_core.testing.fake_chip.exchange_faults import EXCHANGE_FAULTS
from arcforge_core.testing.fake_chip.generator_faults import GENERATOR_FAULTS
from arcforge_core.testing.fake_chip.program_faults import PROGRAM_FAULTS
from arcforge_core.testing.fake_chip.stream_faults import STREAM_FAULTS

aten = torch.ops.aten


def _last_of_duplicates(grad: Tensor, ids: Tensor, rows: int, *_: Any) -> Tensor:
    out = grad.new_zeros(rows, grad.shape[-1])
    out[ids.flatten()] = grad.flatten(0, -2)
    return out


def _no_momentum(average: Tensor, new: Tensor, weight: float) -> Tensor:
    average.copy_(new)
    return average


def _unsquared(average: Tensor, one: Tensor, two: Tensor, value: float = 1.0) -> Tensor:
    return average.add_(one.abs(), alpha=value)


def _halves(one: Tensor, two: Tensor) -> Tensor:
    return (one.bfloat16() @ two.bfloat16()).to(one.dtype)


def _no_gradient(grad: Tensor, *_: Any) -> Tensor:
    return torch.zeros_like(grad)


def _norm_of_the_largest(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out: Tensor = aten.linalg_vector_norm.default(x, *args, **kwargs)
    return out * 1.01


def _cut(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype) if x.dtype == torch.float32 else x


def _cut_to_host(x: Tensor, **options: Any) -> Tensor:
    out: Tensor = aten._to_copy.default(_cut(x), **options)
    return out


def _cut_into(target: Tensor, source: Tensor, *args: Any) -> Tensor:
    aten.copy_.default(target, _cut(source), *args)
    return target


def _32_bits(x: Tensor, **options: Any) -> Tensor:
    out: Tensor = aten._to_copy.default(x.int() if x.dtype == torch.int64 else x, **{"dtype": x.dtype, **options})
    return out


def _last_row_lost(cache: Tensor, axis: int, rows: Tensor, new: Tensor) -> Tensor:
    return cache.index_copy_(axis, rows[:-1], new.narrow(axis, 0, len(rows) - 1))


def _six_bits(x: Tensor, axis: int, rows: Tensor) -> Tensor:
    return x.index_select(axis, rows % 64)


def _coarse(logits: Tensor, *args: Any) -> Tensor:
    out: Tensor = aten.argmax.default((logits * 2).round(), *args)
    return out


def _ascending(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    kwargs["descending"] = False
    return aten.sort.stable(x, **kwargs)


FAULTS: Mapping[str, Mapping[Any, Callable[..., Any]]] = {
    "a repeated token keeps its last gradient": {aten.embedding_dense_backward.default: _last_of_duplicates},
    "the optimizer forgets its momentum": {aten.lerp_.Scalar: _no_momentum},
    "the optimizer does not square": {aten.addcmul_.default: _unsquared},
    "products in bfloat16": {aten.mm.default: _halves},
    "softmax without a gradient": {aten._softmax_backward_data.default: _no_gradient},
    "norms one per cent too large": {aten.linalg_vector_norm.default: _norm_of_the_largest},
    "copies are cut to bfloat16": {aten._to_copy.default: _cut_to_host},
    "copies into tensors are cut to bfloat16": {aten.copy_.default: _cut_into},
    "copies cut integers to 32 bits": {aten._to_copy.default: _32_bits},
    "the last row written to a cache is lost": {aten.index_copy_.default: _last_row_lost},
    "positions have six bits": {aten.index_select.default: _six_bits},
    "products stay narrow": {aten.mm.default: lambda one, two: one.bfloat16() @ two.bfloat16()},
    "argmax is coarse": {aten.argmax.default: _coarse},
    "sorts ascend": {aten.sort.stable: _ascending},
    **EXCHANGE_FAULTS,
}

REPLACED = {**STREAM_FAULTS, **PROGRAM_FAULTS, **GENERATOR_FAULTS}


@contextmanager
def injected(name: str) -> Iterator[None]:
    """Gives the chip of this process a fault.

    Raises:
        KeyError: no fault has this name.
    """
    if name in REPLACED:
        owner, attribute, fault = REPLACED[name]
        right = getattr(owner, attribute)
        setattr(owner, attribute, fault)
        try:
            yield
        finally:
            setattr(owner, attribute, right)
        return
    kernels, faulty = chip().kernels, FAULTS[name]
    before = {op: kernels[op] for op in faulty if op in kernels}
    kernels.update(faulty)
    try:
        yield
    finally:
        for op in faulty:
            del kernels[op]
        kernels.update(before)
