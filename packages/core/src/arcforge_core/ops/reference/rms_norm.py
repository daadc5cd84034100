"""RMS norm."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis: computed in fp32, cast, then scaled by the weight (spec 1.3)."""
    x_32 = x.float() if x.dtype != torch.float64 else x
    normed = x_32 * torch.rsqrt(x_32.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight.to(x.dtype)
