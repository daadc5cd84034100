"""Routed experts with integer weights in C++.

Shapes: T tokens, D hidden, E experts, F twice the expert width f, G groups of inputs, K experts per token.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.quant_linear import quant_linear
from arcforge_hw.cpu.native.quantised import check_weight, served
from arcforge_hw.torch_ops import quant_linear as torch_ops

_function = native.by_dtype("quant_experts", "8p 9i")


def quant_experts(
    x_TD: Tensor, gate_up: Tensor, gate_up_scale_EFG: Tensor, down: Tensor, down_scale_EDG: Tensor, expert_TK: Tensor,
    gate_TK: Tensor, rounds: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.quant_experts`; reads only the chosen experts."""
    (tokens, hidden), (experts, twice, groups) = x_TD.shape, gate_up_scale_EFG.shape
    chosen, inner_groups, width = expert_TK.shape[1], down_scale_EDG.shape[2], twice // 2
    lowest, highest = torch.aminmax(expert_TK) if expert_TK.numel() else (0, 0)
    if int(lowest) < 0 or int(highest) >= experts:
        raise ValueError(f"expert ids must be from 0 to {experts - 1}, got {int(lowest)} to {int(highest)}")
    few = served(x_TD, tokens, (gate_up, down), (gate_up_scale_EFG, down_scale_EDG), rounds)
    if not few or tokens * chosen > experts:
        return torch_ops.each_expert(
            x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK, gate_TK,
            functools.partial(quant_linear, bias_N=None, rounds=rounds),
        )  # fmt: skip
    bits = check_weight("gate_up", gate_up, twice, hidden)
    check_weight("down", down, hidden, width)
    native.check_shape("down_scale_EDG", down_scale_EDG, experts, hidden, inner_groups)
    native.check_shape("gate_TK", gate_TK, tokens, chosen)
    if len(gate_up) != experts or len(down) != experts:
        raise ValueError(f"weights of {len(gate_up)} and {len(down)} experts: must be of {experts}, as the scales")
    given = (x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK.long(), gate_TK.float())
    return native.output(_function, given, tokens, chosen, hidden, width, groups, inner_groups, bits, rounds)
