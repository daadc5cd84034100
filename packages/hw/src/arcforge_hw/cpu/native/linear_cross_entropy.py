"""Linear layer and cross-entropy: products by torch, a chunk of tokens at a time, and the rows between them in C++.

A row of logits is read twice and overwritten by its gradient; in torch's operators that is six passes over it.

Shapes: T tokens, B tokens of a chunk, D hidden, W vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu.native import POINTER, SIZE, check_shape, function, pointers, suffix
from arcforge_hw.torch_ops.linear_cross_entropy import chunk_of, chunked, register, run

ARGUMENTS = (*[POINTER] * 4, *[SIZE] * 4)


def row_losses(logits_BW: Tensor, target_B1: Tensor, needs_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
    """See `arcforge_hw.torch_ops.linear_cross_entropy.Rows`; the gradient takes the place of the logits."""
    rows, width = logits_BW.shape
    check_shape("target_T", target_B1, rows, 1)
    target_B1 = target_B1.long().contiguous()
    if rows and not 0 <= int(target_B1.min()) <= int(target_B1.max()) < width:
        raise IndexError(f"targets must be in [0, {width}), got {int(target_B1.min())} to {int(target_B1.max())}")
    wide = torch.promote_types(logits_BW.dtype, torch.float32)
    loss_B1, total_B1 = (logits_BW.new_empty(rows, 1, dtype=wide) for _ in range(2))
    at = pointers(logits_BW, target_B1, loss_B1, total_B1)
    function(f"arcforge_cross_entropy_{suffix(logits_BW.dtype)}", ARGUMENTS)(
        *at, rows, width, needs_grad, torch.get_num_threads()
    )
    return loss_B1, total_B1, logits_BW


@torch.library.custom_op("arcforge_native::linear_cross_entropy", mutates_args=())
def _forward(
    x_TD: Tensor, weight_WD: Tensor, target_T: Tensor, weight_T: Tensor, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return chunked(x_TD, weight_WD, target_T, weight_T, needs_grad, chunk_of(x_TD), row_losses)


register(_forward)


def linear_cross_entropy(x_TD: Tensor, weight_WD: Tensor, target_T: Tensor, weight_T: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.linear_cross_entropy`."""
    return run(_forward, x_TD, weight_WD, target_T, weight_T)
