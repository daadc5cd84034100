"""The Hadamard transform as sums and differences of halves: N log N operations instead of N squared."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference import hadamard_matrix


def hadamard(x: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.hadamard`; the factor that is not a power of two is a matrix product."""
    size = x.shape[-1]
    core = size & -size  # the largest power of two that divides size; the rest is 1, 3 or 5
    core = size if core == size else max(1, core // 4)  # matrices of 12 and 20 rows are not doubled from smaller ones
    rest = size // core
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide).reshape(-1, core, rest)
    if rest > 1:
        y = y @ hadamard_matrix(rest, y)
    half = core // 2
    while half:
        y = y.reshape(len(y), -1, 2, half * rest)
        y = torch.stack((y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]), dim=2)
        half //= 2
    rotated: Tensor = (y.reshape(x.shape) * core**-0.5).to(x.dtype)
    return rotated
