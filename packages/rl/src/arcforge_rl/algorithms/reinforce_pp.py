"""REINFORCE++ (arXiv 2501.03262): returns of each token minus KL, normalised over the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arcforge_core.config.schema import CorrectionConfig
from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_rl.algorithms import scoring
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs.algorithms import ReinforcePlusPlusConfig


class ReinforcePlusPlus(Clipped[ReinforcePlusPlusConfig]):
    """``baseline=group`` is the variant that first subtracts the group mean."""

    def __init__(self, config: ReinforcePlusPlusConfig, correction: CorrectionConfig) -> None:
        super().__init__(config, correction)
        if config.reward_kl > 0:
            self.needs |= {"reference"}

    def score(self, traces: Sequence[Trace]) -> None:
        """Writes ``advantages``, the normalised returns of each token, and ``weights``."""
        scoring.check_traces(traces)
        means = {}
        for name, group in scoring.groups(traces).items():
            rewards = [trace.reward for trace in group for _ in range(trace.copies)]
            means[name] = sum(rewards) / len(rewards) if self.config.baseline == "group" else 0.0
        found = [
            (trace, branch, self.returns(branch, trace.reward - means[trace.group_id]))
            for trace, branch in scoring.branches(traces)
        ]
        everything_N = torch.cat([return_S.repeat(trace.copies) for trace, _, return_S in found])
        mean, spread = 0.0, 1.0
        if self.config.scale == "batch":
            mean = float(everything_N.mean())
            spread = float(scoring.deviation(everything_N)) + scoring.EPSILON
        for _, branch, return_S in found:
            stream = torch.zeros(len(branch.ids))
            stream[branch.index_T] = ((return_S - mean) / spread).float()
            branch.streams["advantages"] = stream
        scoring.write(traces, "weights", scoring.shares(traces, self.config))

    def returns(self, branch: Branch, reward: float) -> Tensor:
        """Returns the return of each sampled token, float64 [S]: the reward minus the KL from there on."""
        index_S = branch.index_T
        if not self.config.reward_kl:
            return torch.full((len(index_S),), reward, dtype=torch.float64)
        k1_S = torch.tensor(branch.logprobs, dtype=torch.float64)[index_S] - branch.streams["reference"][index_S]
        later_S = k1_S.flip(0).cumsum(0).flip(0)
        return reward - self.config.reward_kl * later_S
