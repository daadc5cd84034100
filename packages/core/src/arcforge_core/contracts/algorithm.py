"""The algorithm contract: traces are scored into per-token streams, the tokens of a micro-batch into a loss.

The trainer is independent of the algorithm. It requests streams once per batch, packs whole traces into micro-batches,
and sums `Algorithm.loss` over them. Every token carries its share of the batch in `weights_T`, so the partition of
traces into micro-batches does not change the result.

T: tokens that the policy sampled, of all branches of a micro-batch; R: traces in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


@dataclass
class Branch:
    """One sequence of tokens, which the policy has read and partly sampled.

    Attributes:
        branch_id: unique in its trace.
        ids: prompt, sampled tokens and tokens of the environment, in order.
        sampled: whether the policy sampled each token; only these are trained.
        logprobs: natural-log probability of each sampled token at the time of sampling; 0 elsewhere.
        versions: weight version that sampled each token; -1 elsewhere.
        streams: numbers for each token, by name, written by the algorithm or the trainer; values at tokens that were
            not sampled are ignored.

    Raises:
        ValueError: lists of different lengths, or a sampled token without a finite log-probability.
    """

    branch_id: str
    ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    versions: list[int]
    streams: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.sampled), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"branch {self.branch_id}: ids, sampled, logprobs and versions have lengths {lengths}")
        if self.sampled and self.sampled[0]:
            raise ValueError(f"branch {self.branch_id}: the first token must not be sampled")
        for position, (sampled, logprob) in enumerate(zip(self.sampled, self.logprobs, strict=True)):
            if sampled and not -float("inf") < logprob <= 1e-3:
                raise ValueError(
                    f"branch {self.branch_id}: token {position} was sampled with log-probability {logprob}"
                )

    @property
    def num_sampled(self) -> int:
        """Number of trained tokens."""
        return sum(self.sampled)

    @property
    def index_T(self) -> Tensor:
        """Positions of the sampled tokens, int64."""
        return torch.tensor([n for n, sampled in enumerate(self.sampled) if sampled], dtype=torch.int64)


@dataclass
class Trace:
    """A rollout: all tokens of one attempt at a task, in one or more branches.

    Attributes:
        task_key: the task.
        group_id: traces of one group are compared with each other.
        rollout_id: unique.
        branches: sampled sequences; context compaction and subagents create further ones.
        rewards: by name; ``reward`` is maximised.
        teacher: name of the teacher whose log-probabilities are used, if there are several.
        truncated: the last branch ended at the length limit.
    """

    task_key: str
    group_id: str
    rollout_id: str
    branches: list[Branch]
    rewards: Mapping[str, float]
    teacher: str = ""
    truncated: bool = False

    @property
    def reward(self) -> float:
        """The reward to maximise."""
        return float(self.rewards["reward"])

    @property
    def num_sampled(self) -> int:
        """Number of trained tokens over all branches."""
        return sum(branch.num_sampled for branch in self.branches)


@dataclass(frozen=True)
class PolicyTokens:
    """The sampled tokens of whole traces, as `Algorithm.loss` receives them; float32 or float64, [T] unless noted.

    Attributes:
        logprobs_T: of the policy being trained; only these and `values_T` have a gradient.
        old_T: of the training engine before the first step on this batch.
        rollout_T: of the inference engine at the time of sampling.
        advantages_T: written by the algorithm.
        weights_T: each token's share of the batch; the loss is the sum weighted by them.
        trace_T: int64, index of the token's trace.
        streams: further ones by name: ``reference``, ``teacher``, ``values``, ``returns``.
        values_T: of the critic being trained, if the algorithm has one.
    """

    logprobs_T: Tensor
    old_T: Tensor
    rollout_T: Tensor
    advantages_T: Tensor
    weights_T: Tensor
    trace_T: Tensor
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    values_T: Tensor | None = None

    @property
    def num_traces(self) -> int:
        """Number of traces, R."""
        return int(self.trace_T.max()) + 1 if self.trace_T.numel() else 0


class Correction(Protocol):
    """A factor on each token's policy loss, for tokens on which two policies disagree."""

    def __call__(self, tokens: PolicyTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the factors, [T] without gradient, and scalars to log by name; none for no tokens."""
        ...


@dataclass(frozen=True)
class PolicyLoss:
    """A micro-batch's contribution to the loss.

    Attributes:
        parts: scalars by name; the gradient is that of their sum. Each is a weighted sum over tokens.
        factor_T: the correction's factor on each token's policy loss, no gradient.
        metrics: scalars by name to be averaged over tokens, no gradient.
    """

    parts: dict[str, Tensor]
    factor_T: Tensor
    metrics: dict[str, Tensor]


class Algorithm(Protocol):
    """Scores traces and computes losses; its target is called as ``target(config, correction)``.

    An algorithm may also say what groups are for: ``compares``, whether it compares the rollouts of a task, which one
    alone cannot be (assumed False), and ``equal_teaches``, whether a group of equal rewards teaches (assumed False).

    Attributes:
        needs: streams that the trainer computes before `score`: ``reference``, ``teacher``, ``values``.
    """

    needs: frozenset[str]

    def score(self, traces: Sequence[Trace]) -> None:
        """Writes the streams ``advantages`` and ``weights`` of all branches of a batch, float32 [len(ids)]."""

    def loss(self, tokens: PolicyTokens) -> PolicyLoss:
        """Returns the loss of whole traces."""
