"""On-policy cross-stage distillation (GLM-5 paper 3.5, eq. 2): teachers score each sampled token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from arcforge_core.config.schema import CorrectionConfig
from arcforge_core.contracts.algorithm import PolicyLoss, PolicyTokens, Trace
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs.algorithms import OpdConfig


class Opd(Clipped[OpdConfig]):
    """Eq. 1 with the advantage sg(log p_teacher - log p): only log-probabilities of sampled tokens are needed.

    Eq. 1's pop is the correction ``icepop``.

    Each trace names its teacher, from which the trainer computes the stream ``teacher``. Groups of equal rewards give a
    gradient, and a group may be a single rollout, as in the paper.
    """

    equal_teaches = True

    def __init__(self, config: OpdConfig, correction: CorrectionConfig) -> None:
        super().__init__(config, correction)
        self.needs |= {"teacher"}
        self.counts_rewards = config.reward_weight > 0
        self.compares = self.compares and config.reward_weight > 0

    def score(self, traces: Sequence[Trace]) -> None:
        """Writes ``advantages`` of the rewards and ``weights``; see `OpdConfig.balance`.

        Raises:
            ArcforgeError: see `check_traces`.
        """
        super().score(traces)
        if self.config.balance == "prompts":
            return
        whole: dict[str, float] = {}
        for trace in traces:
            whole[teacher_of(trace)] = whole.get(teacher_of(trace), 0.0) + weight_of(trace)
        total = sum(whole.values())
        for trace in traces:
            for branch in trace.branches:
                branch.streams["weights"] *= total / (len(whole) * whole[teacher_of(trace)])

    def loss(self, tokens: PolicyTokens) -> PolicyLoss:
        """Returns the loss of eq. 1 with eq. 2's advantages plus `reward_weight` times the reward's."""
        teacher_T = tokens.streams["teacher"] - tokens.logprobs_T.detach()
        return super().loss(replace(tokens, advantages_T=teacher_T + self.config.reward_weight * tokens.advantages_T))


def teacher_of(trace: Trace) -> str:
    """Returns the name under which a trace's teacher is counted: the stage of its prompt, else its domain."""
    return trace.stage or trace.teacher


def weight_of(trace: Trace) -> float:
    """Returns the sum of the weights of a trace's sampled tokens."""
    return sum(float(branch.streams["weights"][branch.index_T].sum()) for branch in trace.branches)
