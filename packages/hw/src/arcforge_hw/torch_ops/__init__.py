"""Kernels made of torch's operators, one file per op, for any device: results are created on the inputs' device."""

from __future__ import annotations

import torch

MORE_ON_DEVICES = 32


def block_values(on_host: int, device: torch.device) -> int:
    """Returns the maximum number of values of an intermediate result.

    Args:
        on_host: the number that fits in a processor's caches; a GPU takes `MORE_ON_DEVICES` times as many, to occupy
            all its cores.
        device: the device of the values.
    """
    return on_host if device.type == "cpu" else MORE_ON_DEVICES * on_host


def add_rows(out_SE: torch.Tensor, rows_P: torch.Tensor, values_PE: torch.Tensor) -> None:
    """Adds values to rows of `out_SE`; those of one row in their order: the same bits on every run."""
    if out_SE.device.type == "cpu":
        out_SE.index_add_(0, rows_P, values_PE)
    else:  # index_add_ uses atomics on GPUs; index_put_ sorts
        out_SE.index_put_((rows_P,), values_PE, accumulate=True)
