"""Dense SwiGLU layer with integer weights. Shapes: T tokens, D hidden, F width, G groups of inputs."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops.reference.quant_linear import quant_linear
from arcforge_core.ops.reference.swiglu import swiglu


def quant_mlp(
    x_TD: Tensor, gate: Tensor, gate_scale_FG: Tensor, up: Tensor, up_scale_FG: Tensor, down: Tensor,
    down_scale_DG: Tensor, rounds: bool = True,
) -> Tensor:  # fmt: skip
    """`mlp` with integer weights in the formats of `quant_linear`."""
    inner_TF = swiglu(
        quant_linear(x_TD, gate, gate_scale_FG, None, rounds), quant_linear(x_TD, up, up_scale_FG, None, rounds)
    )
    return quant_linear(inner_TF, down, down_scale_DG, None, rounds)
