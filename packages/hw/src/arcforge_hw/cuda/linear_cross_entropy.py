"""Linear layer and cross-entropy: chunks of tokens, products by cuBLAS and the row operations in Triton.

Triton reads a row of logits twice and overwrites it with its gradient; torch needs six passes over it.

Shapes: T tokens, B tokens of a chunk, D hidden, W vocabulary or a part of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcforge_hw.cuda.launch import check, tuned
from arcforge_hw.torch_ops.linear_cross_entropy import define

CHUNK = 4096
"""Tokens whose logits exist at a time, 1.3 GB in bfloat16 with GLM-5's vocabulary. Smaller chunks are slower: each
reads and writes the weight's gradient, 3.8 GB in fp32."""


@triton.jit
def cross_entropy_rows(logits, target, loss, total, WIDTH: tl.constexpr, GRAD: tl.constexpr, BLOCK_W: tl.constexpr):
    """One row per program; its gradient times the sum of exponentials overwrites the logits."""
    row, w = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_W)
    at, label = logits + row * WIDTH, tl.load(target + row)
    top, chosen, sum_ = float("-inf"), 0.0, 0.0
    for start in range(0, WIDTH, BLOCK_W):
        x_W = tl.load(at + start + w, mask=start + w < WIDTH, other=float("-inf")).to(tl.float32)
        chosen += tl.sum(tl.where(start + w == label, x_W, 0.0), axis=0)
        new = tl.maximum(top, tl.max(x_W, axis=0))
        sum_ = sum_ * tl.exp(top - new) + tl.sum(tl.exp(x_W - new), axis=0)
        top = new
    tl.store(loss + row, top + tl.log(sum_) - chosen)
    tl.store(total + row, sum_)
    if GRAD:
        for start in range(0, WIDTH, BLOCK_W):
            x_W = tl.load(at + start + w, mask=start + w < WIDTH, other=0.0).to(tl.float32)
            exp_W = tl.exp(x_W - top) - tl.where(start + w == label, sum_, 0.0)
            tl.store(at + start + w, exp_W.to(logits.dtype.element_ty), mask=start + w < WIDTH)


def row_losses(logits_BW: Tensor, target_B1: Tensor, needs_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
    """See `arcforge_hw.torch_ops.linear_cross_entropy.Rows`; the gradient overwrites the logits."""
    check(logits_BW, target_B1)
    rows, width = logits_BW.shape
    loss_B1, total_B1 = (logits_BW.new_empty(rows, 1, dtype=torch.float32) for _ in range(2))
    if rows:
        cross_entropy_rows[(rows,)](
            logits_BW, target_B1, loss_B1, total_B1, WIDTH=width, GRAD=needs_grad, **tuned("cross_entropy_rows")
        )
    return loss_B1, total_B1, logits_BW


linear_cross_entropy = define("arcforge_cuda", row_losses, lambda x_TD: CHUNK)
