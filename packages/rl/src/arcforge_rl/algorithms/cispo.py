"""CISPO (MiniMax-M1, arXiv 2506.13585): clipped ratios weight log-probabilities; every token keeps its gradient."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.algorithm import PolicyTokens
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.algorithms.surrogates import clip_metrics
from arcforge_rl.configs.algorithms import CispoConfig


class Cispo(Clipped[CispoConfig]):
    """-sg(clip(r)) A log p. The lower bound is off by default, as in the paper: ratios are at least 0."""

    def terms(self, tokens: PolicyTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns -sg(clip(r, 1 - low, 1 + high)) A log p."""
        bounds = self.config.clip_low, self.config.clip_high
        ratio_T = self.ratio(tokens).detach()
        weight_T = ratio_T.clamp(1.0 - bounds[0], 1.0 + bounds[1])
        return -weight_T * tokens.advantages_T * tokens.logprobs_T, clip_metrics(ratio_T, tokens.advantages_T, *bounds)
