"""Linear layer. Shapes: K inputs, N outputs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Returns ``x W^T (+ b)`` over x's last axis, all in one dtype."""
    return F.linear(x, weight_NK, bias_N)
