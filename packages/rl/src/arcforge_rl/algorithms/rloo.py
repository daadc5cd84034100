"""RLOO (arXiv 2402.14740): REINFORCE with the mean of the group's other traces as baseline."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.algorithm import PolicyTokens
from arcforge_rl.algorithms.base import PolicyGradient
from arcforge_rl.algorithms.surrogates import ratio
from arcforge_rl.configs.algorithms import RlooConfig


class Rloo(PolicyGradient[RlooConfig]):
    """Ratios are not clipped; in the first update on a batch they are 1, which makes this REINFORCE."""

    def terms(self, tokens: PolicyTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns -r A."""
        return -ratio(tokens) * tokens.advantages_T, {}
