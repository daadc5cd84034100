"""Kernels made of torch's operators, one file per op, for any device: tensors are created where the inputs are."""

from __future__ import annotations

import torch

MORE_ON_DEVICES = 32


def block_values(on_host: int, device: torch.device) -> int:
    """Returns how many values of an intermediate result exist at a time.

    Args:
        on_host: as many as a processor's caches hold; a GPU takes `MORE_ON_DEVICES` times as many, so that there is
            work for all its cores.
        device: where they lie.
    """
    return on_host if device.type == "cpu" else MORE_ON_DEVICES * on_host


def add_rows(out_SE: torch.Tensor, rows_P: torch.Tensor, values_PE: torch.Tensor) -> None:
    """Adds values to rows of `out_SE`, the values of one row in their order: the same bits on every run."""
    if out_SE.device.type == "cpu":
        out_SE.index_add_(0, rows_P, values_PE)
    else:  # index_add_ uses atomics there; this one sorts
        out_SE.index_put_((rows_P,), values_PE, accumulate=True)
