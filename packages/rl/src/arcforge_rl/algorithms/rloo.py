"""RLOO (arXiv 2402.14740): REINFORCE, each trace against the mean of the others of its group."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.algorithm import PolicyTokens
from arcforge_rl.algorithms.base import PolicyGradient
from arcforge_rl.algorithms.surrogates import ratio
from arcforge_rl.configs_algorithms import RlooConfig


class Rloo(PolicyGradient[RlooConfig]):
    """Ratios are not clipped; in the first step on a batch they are 1 and this is REINFORCE."""

    def terms(self, tokens: PolicyTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns -r A."""
        return -ratio(tokens) * tokens.advantages_T, {}
