"""A dense SwiGLU layer with integer weights in one C++ call.

Shapes: T tokens, D hidden, F width, G groups of inputs.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.quant_linear import quant_linear
from arcforge_hw.cpu.native.quantised import check_weight, served

_function = native.by_dtype("quant_mlp", "8p 8i")


def quant_mlp(
    x_TD: Tensor, gate: Tensor, gate_scale_FG: Tensor, up: Tensor, up_scale_FG: Tensor, down: Tensor,
    down_scale_DG: Tensor, rounds: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.quant_mlp`."""
    (tokens, hidden), width = x_TD.shape, len(gate_scale_FG)
    scales = gate_scale_FG, up_scale_FG, down_scale_DG
    if not served(x_TD, tokens, (gate, up, down), scales, rounds):
        inner = (quant_linear(x_TD, w, s, None, rounds) for w, s in ((gate, gate_scale_FG), (up, up_scale_FG)))
        return quant_linear(reference.swiglu(*inner), down, down_scale_DG, None, rounds)
    bits = check_weight("gate", gate, width, hidden)
    check_weight("up", up, width, hidden)
    check_weight("down", down, hidden, width)
    groups, inner_groups = gate_scale_FG.shape[1], down_scale_DG.shape[1]
    native.check_shape("up_scale_FG", up_scale_FG, width, groups)
    native.check_shape("down_scale_DG", down_scale_DG, hidden, inner_groups)
    given = (x_TD, gate, gate_scale_FG, up, up_scale_FG, down, down_scale_DG)
    return native.output(_function, given, tokens, hidden, width, groups, inner_groups, bits, rounds)
