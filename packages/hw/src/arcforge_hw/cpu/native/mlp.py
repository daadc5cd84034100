"""A dense SwiGLU layer in one call of C++. Shapes: T tokens, D hidden, F width."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.fused import served

_function = native.by_dtype("mlp", "5p 4i")


def mlp(x_TD: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.mlp`."""
    (tokens, hidden), width = x_TD.shape, len(gate_FD)
    if not served(x_TD, hidden, width):
        return reference.mlp(x_TD, gate_FD, up_FD, down_DF)
    native.check_dtypes(x_TD, gate_FD, up_FD, down_DF)
    native.check_shape("gate_FD", gate_FD, width, hidden)
    native.check_shape("up_FD", up_FD, width, hidden)
    native.check_shape("down_DF", down_DF, hidden, width)
    return native.output(_function, (x_TD, gate_FD, up_FD, down_DF), tokens, hidden, width)
