"""Routed experts of few tokens in C++, which reads only the chosen ones; otherwise torch's grouped products run.

Shapes: T tokens, D hidden, E experts, F twice the expert width f, K experts per token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu import native
from arcforge_hw.torch_ops import moe_experts as grouped

_function = native.by_dtype("experts", "6p 5i")


def moe_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.moe_experts`; reads only the chosen experts."""
    (experts, hidden, width), (tokens, chosen) = down_EDF.shape, expert_TK.shape
    inputs = (x_TD, gate_up_EFD, down_EDF, gate_TK)
    few = 0 < tokens * chosen <= experts and x_TD.dtype in (torch.float32, torch.bfloat16)
    few = few and native.whole_vectors(hidden, x_TD.dtype) and native.whole_vectors(width, x_TD.dtype)
    if not (few and native.direct(*inputs)):
        return grouped.moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
    lowest, highest = torch.aminmax(expert_TK)
    if int(lowest) < 0 or int(highest) >= experts:
        raise ValueError(f"expert ids must be from 0 to {experts - 1}, got {int(lowest)} to {int(highest)}")
    native.check_dtypes(x_TD, gate_up_EFD, down_EDF)
    native.check_shape("x_TD", x_TD, tokens, hidden)
    native.check_shape("gate_up_EFD", gate_up_EFD, experts, 2 * width, hidden)
    native.check_shape("gate_TK", gate_TK, tokens, chosen)
    given = (x_TD, gate_up_EFD, down_EDF, expert_TK.long(), gate_TK.float())
    return native.output(_function, given, tokens, chosen, hidden, width)
