"""Routed experts with integer weights.

Shapes: T tokens, D hidden, E experts, F twice the expert width f, G groups of inputs, K experts per token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference.quant_linear import quant_linear
from arcforge_core.ops.reference.swiglu import swiglu


def quant_experts(
    x_TD: Tensor, gate_up: Tensor, gate_up_scale_EFG: Tensor, down: Tensor, down_scale_EDG: Tensor, expert_TK: Tensor,
    gate_TK: Tensor, rounds: bool = True,
) -> Tensor:  # fmt: skip
    """`moe_experts` with integer weights in the formats of `quant_linear`.

    Args:
        x_TD: tokens.
        gate_up: int8 [E, 2f, D] or packed int4 [E, 2f, D / 2].
        gate_up_scale_EFG: scales of gate_up.
        down: int8 [E, D, f] or packed int4 [E, D, f / 2].
        down_scale_EDG: scales of down.
        expert_TK, gate_TK: as in `moe_experts`.
        rounds: as in `quant_linear`.
    """
    out = torch.zeros_like(x_TD)
    for expert in range(len(gate_up)):
        token, choice = torch.where(expert_TK == expert)
        inner = quant_linear(x_TD[token], gate_up[expert], gate_up_scale_EFG[expert], None, rounds)
        y = quant_linear(swiglu(*inner.chunk(2, dim=-1)), down[expert], down_scale_EDG[expert], None, rounds)
        out = out.index_add(0, token, y * gate_TK[token, choice, None].to(y.dtype))
    return out
