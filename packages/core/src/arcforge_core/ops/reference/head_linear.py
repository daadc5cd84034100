"""One linear map per head. Shapes: T tokens, H heads, K inputs, N outputs."""

from __future__ import annotations

import torch
from torch import Tensor


def head_linear(x_THK: Tensor, weight_HNK: Tensor) -> Tensor:
    """Returns [T, H, N]: each head's rows times the head's own weight."""
    return torch.einsum("thk,hnk->thn", x_THK, weight_HNK)
