"""Mixture of experts with a shared expert as one op without gradients.

Shapes: T tokens, D hidden, E experts, F width, K experts per token.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops.reference.mlp import mlp
from arcforge_core.ops.reference.moe_experts import moe_experts
from arcforge_core.ops.reference.router_scores import route


def moe(
    x_TD: Tensor, router_ED: Tensor, bias_E: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, shared_gate_FD: Tensor,
    shared_up_FD: Tensor, shared_down_DF: Tensor, chosen: int, scale: float,
) -> Tensor:  # fmt: skip
    """Mixture of experts with a shared expert (spec 1.5), without group limits; `route` selects the experts."""
    expert_TK, gate_TK = route(x_TD, router_ED, bias_E, chosen, scale)
    routed_TD = moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
    return routed_TD + mlp(x_TD, shared_gate_FD, shared_up_FD, shared_down_DF)
