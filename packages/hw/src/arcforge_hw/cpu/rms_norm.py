"""RMSNorm with a hand-written backward pass that keeps the input and one number per row.

Shapes: N rows, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x_ND.dtype, torch.float32)
        norm_N1 = torch.linalg.vector_norm(x_ND, dim=-1, keepdim=True, dtype=wide)
        rstd_N1 = norm_N1.square_().div_(x_ND.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x_ND, weight_D, rstd_N1)
        normed_ND: Tensor = (x_ND * rstd_N1).to(x_ND.dtype)
        return normed_ND.mul_(weight_D.to(x_ND.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x_ND, weight_D, rstd_N1 = ctx.saved_tensors
        wide, (grad_ND,) = rstd_N1.dtype, grads
        x, grad = x_ND.to(wide), grad_ND.to(wide)
        grad_weight_D = (grad * x).mT @ rstd_N1[:, 0]
        scaled = grad * weight_D.to(wide)
        along_N1 = torch.linalg.vecdot(scaled, x)[:, None] * rstd_N1.square() / x.shape[-1]
        grad_x = torch.addcmul(scaled, x, along_N1, value=-1).mul_(rstd_N1)
        return grad_x.to(x_ND.dtype), grad_weight_D.to(weight_D.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm over the last axis; see `arcforge_core.ops.reference.rms_norm`."""
    out: Tensor = _RmsNorm.apply(x.reshape(-1, x.shape[-1]), weight, eps)
    return out.view(x.shape)
