"""Mixture of experts with integer weights.

Shapes: T tokens, D hidden, E experts, F width, G groups of inputs, K experts per token.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops.reference.quant_experts import quant_experts
from arcforge_core.ops.reference.quant_mlp import quant_mlp
from arcforge_core.ops.reference.router_scores import route


def quant_moe(
    x_TD: Tensor, router_ED: Tensor, bias_E: Tensor, gate_up: Tensor, gate_up_scale_EFG: Tensor, down: Tensor,
    down_scale_EDG: Tensor, shared_gate: Tensor, shared_gate_scale_FG: Tensor, shared_up: Tensor,
    shared_up_scale_FG: Tensor, shared_down: Tensor, shared_down_scale_DG: Tensor, chosen: int, scale: float,
    rounds: bool = True,
) -> Tensor:  # fmt: skip
    """`moe` with integer weights in the formats of `quant_experts` and `quant_mlp`; the router is not quantised."""
    expert_TK, gate_TK = route(x_TD, router_ED, bias_E, chosen, scale)
    routed_TD = quant_experts(x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK, gate_TK, rounds)
    shared = (shared_gate, shared_gate_scale_FG, shared_up, shared_up_scale_FG, shared_down, shared_down_scale_DG)
    return routed_TD + quant_mlp(x_TD, *shared, rounds)
