"""RMSNorm and the bias-free linear layer. Weights may be fp32 masters: they are cast to the activations' dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Binder


class RMSNorm(nn.Module):
    """Root-mean-square norm: fp32 inside, the weight multiplies the cast value (spec 1.3)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        self.rms_norm = reference.rms_norm

    def bind_ops(self, bind: Binder) -> None:
        """Resolves the op."""
        self.rms_norm = bind("rms_norm", width=self.weight.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis; keeps shape and dtype."""
        return self.rms_norm(x, self.weight, self.eps)


class Linear(nn.Linear):
    """`nn.Linear` whose parameters are cast to the input's dtype, so fp32 weights serve bf16 activations."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.linear = reference.linear

    def bind_ops(self, bind: Binder) -> None:
        """Resolves the op."""
        self.linear = bind("linear", inputs=self.in_features, outputs=self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W^T (+ b) in x's dtype."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return self.linear(x, self.weight.to(x.dtype), bias)

    def full_weight(self, dtype: torch.dtype) -> Tensor:
        """Returns the matrix that `forward` multiplies with, for those who multiply otherwise."""
        return self.weight.to(dtype)
