"""On-policy cross-stage distillation (GLM-5 paper 3.5, eq. 2): teachers say how much better each sampled token was."""

from __future__ import annotations

from dataclasses import replace

from arcforge_core.contracts.algorithm import PolicyLoss, PolicyTokens
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs_algorithms import BoundsConfig, OpdConfig


class Opd(Clipped[OpdConfig]):
    """Eq. 1 with the advantage sg(log p_teacher - log p): only log-probabilities of sampled tokens are needed.

    Each trace names its teacher; the trainer fills the stream ``teacher`` from it.
    """

    def __init__(self, config: OpdConfig, correction: BoundsConfig) -> None:
        super().__init__(config, correction)
        self.needs |= {"teacher"}

    def loss(self, tokens: PolicyTokens) -> PolicyLoss:
        """Returns the loss of eq. 1 with eq. 2's advantages, the reward's added with `reward_weight`."""
        teacher_T = tokens.streams["teacher"] - tokens.logprobs_T.detach()
        return super().loss(replace(tokens, advantages_T=teacher_T + self.config.reward_weight * tokens.advantages_T))
