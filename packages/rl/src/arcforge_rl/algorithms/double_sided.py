"""GLM-5's agentic RL (paper 4.1, eq. 3-5): the rollout's own log-probabilities, masked on both sides."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.algorithm import PolicyTokens
from arcforge_rl.algorithms.base import PolicyGradient
from arcforge_rl.configs.algorithms import DoubleSidedConfig


class DoubleSided(PolicyGradient[DoubleSidedConfig]):
    """Maximises E[f(r) A log p] with r = p/p_rollout; f, a constant weight, is the correction ``double_sided``.

    f(r) is r inside the open interval (1 - low, 1 + high) and 0 outside, for either sign of the advantage. The old
    policy is not used.
    """

    has_ratio = False

    def terms(self, tokens: PolicyTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns -A log p."""
        return -tokens.advantages_T * tokens.logprobs_T, {}
