"""One call of an op: its arguments in any dtype, dense or strided, with contiguous or paged keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from arcforge_core.contracts.batch import Pages

HOST_ARGUMENTS = ("cu_query", "cu_key")
"""Lengths stay on the host for every device."""

FLOAT32_ARGUMENTS = (
    "cos_TF", "sin_TF", "w_TI", "gate_TK", "weight_T", "g_TH", "beta_TH", "state_NHKV", "scale_NG",
    "gate_up_scale_EFG", "down_scale_EDG", "gate_scale_FG", "up_scale_FG", "down_scale_DG",
)  # fmt: skip
"""These never have a lower precision than fp32."""


def normal(g: Generator, *shape: int) -> Tensor:
    """Returns normal draws in float64."""
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def integers(g: Generator, low: int, high: int, *shape: int) -> Tensor:
    """Returns integers from `low` to `high` - 1."""
    return torch.randint(low, high, shape, generator=g)


@dataclass(frozen=True)
class OpCase:
    """One call of an op.

    Attributes:
        op: op name.
        name: the distinguishing property of the case.
        args: arguments in the reference's order; floating tensors are float64.
        grad: arguments that get a gradient.
        sizes: fixed sizes, as a module passes them when it binds the op.
    """

    op: str
    name: str
    args: Mapping[str, Any]
    grad: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    def inputs(self, dtype: torch.dtype, device: str, *, strided: bool = False) -> dict[str, Any]:
        """Returns the arguments in `dtype` on `device`, as fresh tensors.

        Args:
            dtype: dtype of the activations and weights.
            device: device of all tensors except the lengths.
            strided: separate the rows of floating tensors by NaN, as in a slice of a fused projection.
        """
        result = dict(self.args)
        for name, value in self.args.items():
            if not isinstance(value, Tensor) or name in HOST_ARGUMENTS:
                continue
            if value.is_floating_point():
                wide = name in FLOAT32_ARGUMENTS and dtype.itemsize < 4
                value = value.to(torch.float32 if wide else dtype)
            value = value.to(device, copy=True)
            result[name] = spread_rows(value) if strided and value.is_floating_point() else value
        return result


def spread_rows(x: Tensor) -> Tensor:
    """Returns `x` as a view into a buffer with twice the row length, NaN in the gaps."""
    if x.ndim < 2:
        return x
    width = x.shape[-1]
    buffer = x.new_full((*x.shape[:-1], 2 * width), float("nan"))
    buffer[..., :width] = x
    return buffer[..., :width]


def paged(case: OpCase, *keys: str) -> OpCase:
    """Returns the case with its keys in shuffled pages of 4 rows, with other rows in between; without gradients."""
    size, cu_key = 4, case.args["cu_key"]
    lengths = cu_key.diff().tolist()
    counts = [-(-length // size) for length in lengths]
    numbers = torch.randperm(sum(counts) + 2, generator=Generator().manual_seed(len(lengths))).split([*counts, 2])
    table_NP = torch.nn.utils.rnn.pad_sequence(list(numbers[:-1]), batch_first=True)
    pages = Pages(table_NP, size, size * (sum(counts) + 2))
    stores = {}
    for name in keys:
        stores[name] = case.args[name].new_full((pages.rows, *case.args[name].shape[1:]), float("nan"))
        stores[name][pages.key_rows(cu_key)] = case.args[name]
    return replace(case, name=f"{case.name}, in pages", args={**case.args, **stores, "pages": pages}, grad=())
