"""Rotary tables, computed once per step and shared by all layers. Shapes: T tokens, F = dim / 2 frequencies."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_tables(positions_T: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Returns fp32 (cos_TF, sin_TF) for positions; angles are taken in float64, positions reach 202,752.

    Pair f turns by ``position * theta ** (-2 f / dim)``.
    """
    exponent_F = torch.arange(0, dim, 2, dtype=torch.float64, device=positions_T.device) / dim
    angle_TF = positions_T.to(torch.float64)[:, None] * theta**-exponent_F
    return angle_TF.cos().float(), angle_TF.sin().float()
