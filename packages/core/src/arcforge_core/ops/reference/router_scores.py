"""Expert scores and routing (spec 1.5). Shapes: T tokens, D hidden, E experts, K experts per token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def router_scores(x_TD: Tensor, weight_ED: Tensor) -> Tensor:
    """Returns ``sigmoid(x W^T)`` [T, E], fp32 or wider (spec 1.5)."""
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    return F.linear(x_TD.to(wide), weight_ED.to(wide)).sigmoid()


def route(x_TD: Tensor, router_ED: Tensor, bias_E: Tensor, chosen: int, scale: float) -> tuple[Tensor, Tensor]:
    """Returns experts [T, K] and their gates, proportional to the scores and summing to `scale` (spec 1.5).

    A token goes to the `chosen` experts with the highest score plus bias, ties to the lower index.
    """
    score_TE = router_scores(x_TD, router_ED)
    expert_TK = (score_TE + bias_E).sort(dim=-1, descending=True, stable=True).indices[:, :chosen]
    gate_TK = score_TE.gather(1, expert_TK)
    return expert_TK, gate_TK / (gate_TK.sum(-1, keepdim=True) + 1e-20) * scale
