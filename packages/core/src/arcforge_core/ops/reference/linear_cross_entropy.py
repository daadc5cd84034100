"""Output projection and cross-entropy. Shapes: T tokens, D hidden, W vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_cross_entropy(x_TD: Tensor, weight_WD: Tensor, target_T: Tensor, weight_T: Tensor) -> Tensor:
    """Weighted sum over tokens of the negative log-likelihood of `target_T` under softmax(x W^T).

    Returns:
        fp32 scalar (float64 for float64 inputs). `weight_T` gets no gradient.
    """
    logits = F.linear(x_TD, weight_WD)
    logits = logits.float() if logits.dtype != torch.float64 else logits
    nll_T = F.cross_entropy(logits, target_T, reduction="none")
    return (nll_T * weight_T.detach().to(nll_T.dtype)).sum()
