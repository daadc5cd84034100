"""Dense SwiGLU layer as one op without gradients. Shapes: T tokens, D hidden, F width."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops.reference.linear import linear
from arcforge_core.ops.reference.swiglu import swiglu


def mlp(x_TD: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor) -> Tensor:
    """``down(silu(gate x) * up x)``."""
    return linear(swiglu(linear(x_TD, gate_FD), linear(x_TD, up_FD)), down_DF)
