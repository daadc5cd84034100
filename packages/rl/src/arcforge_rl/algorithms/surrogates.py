"""Per-token terms of policy losses, [T], to be minimised, without the factor of the correction."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import PolicyTokens
from arcforge_rl.algorithms.corrections import MOST_LOG, over_traces


def ratio(tokens: PolicyTokens) -> Tensor:
    """Returns r = p/p_old by token, with gradient."""
    return (tokens.logprobs_T - tokens.old_T).clamp(-MOST_LOG, MOST_LOG).exp()


def sequence_ratio(tokens: PolicyTokens) -> Tensor:
    """Returns GSPO's ratio, exp of the mean log-ratio of the token's trace; gradients flow to the whole trace."""
    log_T = over_traces((tokens.logprobs_T - tokens.old_T).clamp(-MOST_LOG, MOST_LOG), tokens, "geometric")
    return log_T.exp()


def clipped(ratio_T: Tensor, advantages_T: Tensor, low: float, high: float) -> Tensor:
    """Returns -min(r A, clip(r, 1 - low, 1 + high) A)."""
    moved_T = ratio_T.clamp(1.0 - low, 1.0 + high)
    return -torch.minimum(ratio_T * advantages_T, moved_T * advantages_T)


def clip_metrics(ratio_T: Tensor, advantages_T: Tensor, low: float, high: float) -> dict[str, Tensor]:
    """Returns the shares of tokens whose gradient is clipped to 0."""
    with torch.no_grad():
        low_T = (ratio_T < 1.0 - low) & (advantages_T < 0)
        high_T = (ratio_T > 1.0 + high) & (advantages_T > 0)
        return {"clipped_low": low_T.double().mean(), "clipped_high": high_T.double().mean()} if len(ratio_T) else {}


def reference_kl(tokens: PolicyTokens) -> Tensor:
    """Returns k3, a non-negative estimate of KL(p, reference), with gradient."""
    log_T = (tokens.streams["reference"] - tokens.logprobs_T).clamp(-MOST_LOG, MOST_LOG)
    return torch.expm1(log_T) - log_T
