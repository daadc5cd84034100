"""Routed experts. Shapes: T tokens, D hidden, E experts, F twice the expert width f, K experts per token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def moe_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """Sum over a token's chosen experts of gate * down(silu(gate_proj x) * up_proj x).

    Args:
        x_TD: tokens.
        gate_up_EFD: [E, 2f, D], gate rows first.
        down_EDF: [E, D, f].
        expert_TK: int64 chosen experts, distinct in a row.
        gate_TK: their gates, fp32.

    Returns:
        [T, D] in x's dtype.
    """
    out = torch.zeros_like(x_TD)
    for expert in range(gate_up_EFD.shape[0]):
        token, choice = torch.where(expert_TK == expert)
        gate, up = F.linear(x_TD[token], gate_up_EFD[expert]).chunk(2, dim=-1)
        y = F.linear(F.silu(gate) * up, down_EDF[expert])
        out = out.index_add(0, token, y * gate_TK[token, choice, None].to(y.dtype))
    return out
