"""PPO (arXiv 1707.06347) with a critic: the baseline of newer algorithms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arcforge_core.config.schema import CorrectionConfig
from arcforge_core.contracts.algorithm import PolicyLoss, PolicyTokens, Trace
from arcforge_rl.algorithms import scoring
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs.algorithms import PpoConfig


def generalised_advantages(value_S: Tensor, reward: float, discount: float, decay: float) -> Tensor:
    """Returns GAE (arXiv 1506.02438) over the sampled tokens of a branch, [S]; the last token gets the reward."""
    advantage_S = torch.empty_like(value_S)
    following, next_value = 0.0, 0.0
    for n in range(len(value_S) - 1, -1, -1):
        here = reward if n == len(value_S) - 1 else 0.0
        following = here + discount * next_value - float(value_S[n]) + discount * decay * following
        advantage_S[n] = following
        next_value = float(value_S[n])
    return advantage_S


class Ppo(Clipped[PpoConfig]):
    """A clipped surrogate and a critic with clipped loss. Every branch ends with the trace's reward."""

    def __init__(self, config: PpoConfig, correction: CorrectionConfig) -> None:
        super().__init__(config, correction)
        self.needs |= {"values"}

    def score(self, traces: Sequence[Trace]) -> None:
        """Writes ``advantages``, ``returns`` and ``weights`` from the stream ``values``."""
        scoring.check_traces(traces)
        for trace, branch in scoring.branches(traces):
            index_S = branch.index_T
            value_S = branch.streams["values"][index_S].double()
            config = self.config
            advantage_S = generalised_advantages(value_S, trace.reward, config.discount, config.gae_lambda)
            for name, stream_S in (("advantages", advantage_S), ("returns", advantage_S + value_S)):
                branch.streams[name] = torch.zeros(len(branch.ids)).index_copy_(0, index_S, stream_S.float())
        if self.config.scale == "batch":
            self._normalise(traces)
        scoring.write(traces, "weights", scoring.shares(traces, self.config))

    def _normalise(self, traces: Sequence[Trace]) -> None:
        parts = [(trace, branch, branch.index_T) for trace, branch in scoring.branches(traces)]
        everything_N = torch.cat(
            [branch.streams["advantages"][index_S].repeat(trace.copies) for trace, branch, index_S in parts]
        )
        mean, spread = everything_N.mean(), scoring.deviation(everything_N) + scoring.EPSILON
        for _, branch, index_S in parts:
            branch.streams["advantages"][index_S] = (branch.streams["advantages"][index_S] - mean) / spread

    def loss(self, tokens: PolicyTokens) -> PolicyLoss:
        """Returns the policy's loss and the critic's."""
        assert tokens.values_T is not None
        found = super().loss(tokens)
        value_T, old_T, return_T = tokens.values_T, tokens.streams["values"], tokens.streams["returns"]
        near_T = old_T + (value_T - old_T).clamp(-self.config.value_clip, self.config.value_clip)
        error_T = torch.maximum((value_T - return_T).square(), (near_T - return_T).square()) / 2
        found.parts["value"] = self.config.value_weight * (tokens.weights_T * error_T).sum()
        return found
