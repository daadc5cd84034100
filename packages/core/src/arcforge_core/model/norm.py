"""RMSNorm and the bias-free linear layer. Weights may be fp32 masters: they are cast to the activations' dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from arcforge_core.ops import op, reference


class RMSNorm(nn.Module):
    """Root-mean-square norm: computed in fp32, cast, then multiplied by the weight (spec 1.3)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        self.rms_norm = op(reference.rms_norm, width=width)

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis; keeps shape and dtype."""
        return self.rms_norm(x, self.weight, self.eps)


class Linear(nn.Linear):
    """`nn.Linear` whose parameters are cast to the input's dtype, so fp32 weights serve bf16 activations."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.linear = op(reference.linear, {"weight_NK": "weight"}, inputs=in_features, outputs=out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W^T (+ b) in x's dtype."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return self.linear(x, self.weight.to(x.dtype), bias)

    def full_weight(self, dtype: torch.dtype) -> Tensor:
        """Returns the matrix of `forward`, for callers that multiply with it in another form."""
        return self.weight.to(dtype)
