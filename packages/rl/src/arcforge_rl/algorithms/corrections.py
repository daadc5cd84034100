"""Corrections for the mismatch of two policies: one type for truncated weights, IcePop and double-sided masks.

T: sampled tokens; R: traces.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import PolicyTokens
from arcforge_rl.configs.algorithms import BoundsConfig

QUANTILES = (0.01, 0.5, 0.99)
MOST_LOG = 20.0
"""Log-probability differences are clamped to this before exp, as in TRL and slime: exp(20) is 5e8."""


def log_ratio(pair: str, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
    """Returns log p and log q of a pair, [T] each, detached."""
    numerator, denominator = pair.split("_")
    by_name = {"current": tokens.logprobs_T, "old": tokens.old_T, "rollout": tokens.rollout_T}
    return by_name[numerator].detach(), by_name[denominator].detach()


def over_traces(value_T: Tensor, tokens: PolicyTokens, level: str) -> Tensor:
    """Returns sums (``sequence``) or means (``geometric``) over each token's trace, [T]; ``token``: the input."""
    if level == "token":
        return value_T
    sums_R = value_T.new_zeros(tokens.num_traces).index_add(0, tokens.trace_T, value_T)
    if level == "geometric":
        sums_R = sums_R / torch.bincount(tokens.trace_T, minlength=tokens.num_traces).clamp(min=1)
    return sums_R[tokens.trace_T]


class Correction:
    """Computes a factor for each token's policy loss.

    Args:
        config: pair, level, metric, action, bounds and sign.
    """

    def __init__(self, config: BoundsConfig) -> None:
        self.config = config

    def __call__(self, tokens: PolicyTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the factors, [T], detached, and metrics to log.

        Metrics: shares of tokens below and above the bounds, quantiles of the ratio at the configured level, k3 per
        token, and the effective sample size of the factors as a share of the tokens.
        """
        config = self.config
        p_T, q_T = log_ratio(config.pair, tokens)
        log_T = (p_T - q_T).clamp(-MOST_LOG, MOST_LOG)
        k3_T = torch.expm1(log_T) - log_T
        level_T = over_traces(log_T, tokens, config.level).clamp(-MOST_LOG, MOST_LOG)
        ratio_T = level_T.exp()
        value_T = {
            "ratio": lambda: ratio_T,
            "difference": lambda: p_T.exp() - q_T.exp(),
            "k1": lambda: -level_T,
            "k2": lambda: over_traces(log_T.square() / 2, tokens, config.level),
            "k3": lambda: over_traces(k3_T, tokens, config.level),
        }[config.metric]()
        low_T, high_T = self._outside(value_T, tokens.advantages_T)
        if config.action == "none":
            factor_T = torch.ones_like(ratio_T)
        elif config.action == "truncate":
            factor_T = ratio_T.clamp(config.low, config.high)
        else:
            inside_T = ratio_T if config.action == "mask" else torch.ones_like(ratio_T)
            factor_T = torch.where(low_T | high_T, torch.zeros_like(ratio_T), inside_T)
        return factor_T, self._metrics(factor_T, ratio_T, k3_T, low_T, high_T)

    def _outside(self, value_T: Tensor, advantages_T: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        nothing_T = torch.zeros_like(value_T, dtype=torch.bool)
        low_T = high_T = nothing_T
        if config.low is not None:
            low_T = value_T < config.low if config.closed else value_T <= config.low
        if config.high is not None:
            high_T = value_T > config.high if config.closed else value_T >= config.high
        if config.sign == "outward":
            low_T, high_T = low_T & (advantages_T < 0), high_T & (advantages_T > 0)
        elif config.sign == "negative":
            low_T, high_T = low_T & (advantages_T < 0), high_T & (advantages_T < 0)
        return low_T, high_T

    def _metrics(
        self, factor_T: Tensor, ratio_T: Tensor, k3_T: Tensor, low_T: Tensor, high_T: Tensor
    ) -> dict[str, Tensor]:
        if not ratio_T.numel():
            return {}
        quantiles = ratio_T.quantile(ratio_T.new_tensor(QUANTILES))
        squares = factor_T.square().sum()
        effective = factor_T.sum().square() / squares / factor_T.numel() if squares > 0 else squares
        return {
            "masked_low": low_T.to(ratio_T.dtype).mean(),
            "masked_high": high_T.to(ratio_T.dtype).mean(),
            **{f"ratio_{100 * q:g}": value for q, value in zip(QUANTILES, quantiles, strict=True)},
            "k3": k3_T.mean(),
            "effective_samples": effective,
        }
