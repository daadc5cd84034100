"""On-policy cross-stage distillation (GLM-5 paper 3.5, eq. 2): teachers score each sampled token.

T: sampled tokens; K: tokens that the teacher finds likeliest in the place of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from arcforge_core.config.schema import CorrectionConfig
from arcforge_core.contracts.algorithm import PolicyLoss, PolicyTokens, Trace
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs.algorithms import OpdConfig

LEAST = 1e-6
"""Probability of the class of all other tokens at least: less is rounding."""


class Opd(Clipped[OpdConfig]):
    """Eq. 1 with the advantage sg(log p_teacher - log p): only log-probabilities of sampled tokens are needed.

    Eq. 1's pop is the correction ``icepop``.

    With `OpdConfig.top_k` the teacher's likeliest tokens take the place of the sampled one: the loss of a token is
    `coarse_divergence`, times the factor of the correction, and eq. 1 has the reward's advantage alone.

    Each trace names its teacher, from which the trainer computes the stream ``teacher``. Groups of equal rewards give a
    gradient, and a group may be a single rollout, as in the paper.

    Attributes:
        step: finished steps of the run, which decide how deep in a trace is taught (`OpdConfig.depth`).
    """

    equal_teaches = True
    step: int = 0

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
        if self.config.depth:
            depth = self.config.depth + self.step // self.config.depth_steps
            for trace in traces:
                keep_replies(trace, depth)
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
        advantages_T = self.config.reward_weight * tokens.advantages_T
        if self.config.top_k == 0:
            teacher_T = tokens.streams["teacher"] - tokens.logprobs_T.detach()
            return super().loss(replace(tokens, advantages_T=teacher_T + advantages_T))
        found = super().loss(replace(tokens, advantages_T=advantages_T))
        assert tokens.others_TK is not None
        divergence_T = coarse_divergence(tokens.others_TK, tokens.streams["teacher_others"])
        part = (tokens.weights_T * found.factor_T * divergence_T).sum()
        return replace(found, parts={**found.parts, "distillation": part})


def coarse_divergence(policy_TK: Tensor, teacher_TK: Tensor) -> Tensor:
    """Returns KL(policy | teacher) over K tokens and one class for all others, [T]; at most that of all tokens.

    Args:
        policy_TK: natural-log probabilities of the K tokens; the gradient is exact, no sample is taken.
        teacher_TK: the same of the teacher.
    """
    rest_T, teacher_rest_T = log_rest(policy_TK), log_rest(teacher_TK)
    among_T = (policy_TK.exp() * (policy_TK - teacher_TK)).sum(-1)
    return among_T + rest_T.exp() * (rest_T - teacher_rest_T)


def log_rest(logprobs_TK: Tensor) -> Tensor:
    """Returns the log-probability of all other tokens, [T]; at least that of `LEAST`."""
    return (1.0 - logprobs_TK.exp().sum(-1)).clamp_min(LEAST).log()


def teacher_of(trace: Trace) -> str:
    """Returns the name under which a trace's teacher is counted: the stage of its prompt, else its domain."""
    return trace.stage or trace.teacher


def keep_replies(trace: Trace, depth: int) -> None:
    """Gives the weights of a trace's replies after the first `depth` to these; its whole weight stays.

    A reply is a run of sampled tokens; they are counted over the branches in order.
    """
    whole, begun = weight_of(trace), 0
    for branch in trace.branches:
        sampled = torch.from_numpy(branch.sampled.copy())
        starts = sampled.clone()
        starts[1:] &= ~sampled[:-1]
        branch.streams["weights"] = branch.streams["weights"] * (begun + starts.cumsum(0) <= depth)
        begun += int(starts.sum())
    if (kept := weight_of(trace)) > 0:
        for branch in trace.branches:
            branch.streams["weights"] *= whole / kept


def weight_of(trace: Trace) -> float:
    """Returns the sum of the weights of a trace's sampled tokens."""
    return sum(float(branch.streams["weights"][branch.index_T].sum()) for branch in trace.branches)
