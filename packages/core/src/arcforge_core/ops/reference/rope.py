"""Rotary position embedding. Shapes: T tokens, H heads, R rotated width, F = R / 2."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """Rotates the pairs (0,1), (2,3), ... of the last axis; the result keeps the interleaved order (spec 1.3).

    Args:
        x_THR: [T, H, R], R even.
        cos_TF: [T, R/2] fp32 cosines; sin_TF likewise.
    """
    x_32 = x_THR.float() if x_THR.dtype != torch.float64 else x_THR
    even, odd = x_32[..., 0::2], x_32[..., 1::2]
    cos, sin = cos_TF[:, None], sin_TF[:, None]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x_THR.dtype)
