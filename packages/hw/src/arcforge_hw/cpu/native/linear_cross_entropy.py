"""Linear layer and cross-entropy: chunks of tokens, products by torch and the row operations in C++.

C++ reads a row of logits twice and overwrites it with its gradient; torch's operators need six passes over it.

Shapes: T tokens, B tokens of a chunk, D hidden, W vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu import native
from arcforge_hw.torch_ops.linear_cross_entropy import define

_function = native.by_dtype("cross_entropy", "4p 4i")


def row_losses(logits_BW: Tensor, target_B1: Tensor, needs_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
    """See `arcforge_hw.torch_ops.linear_cross_entropy.Rows`; the gradient overwrites the logits."""
    rows, width = logits_BW.shape
    native.check_shape("target_T", target_B1, rows, 1)
    target_B1 = target_B1.long().contiguous()
    if rows and not 0 <= int(target_B1.min()) <= int(target_B1.max()) < width:
        raise IndexError(f"targets must be in [0, {width}), got {int(target_B1.min())} to {int(target_B1.max())}")
    wide = torch.promote_types(logits_BW.dtype, torch.float32)
    loss_B1, total_B1 = (logits_BW.new_empty(rows, 1, dtype=wide) for _ in range(2))
    at = native.pointers(logits_BW, target_B1, loss_B1, total_B1)
    _function(logits_BW.dtype)(*at, rows, width, needs_grad, torch.get_num_threads())
    return loss_B1, total_B1, logits_BW


linear_cross_entropy = define("arcforge_native", row_losses)
