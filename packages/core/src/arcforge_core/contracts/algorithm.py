"""The algorithm contract: traces are scored into per-token streams, tokens of a micro-batch into a loss.

The trainer knows no algorithm. It asks for streams once per batch, packs whole traces into micro-batches, and sums what
`Algorithm.loss` returns over them. Every token carries its share of the batch in `weights_T`, so that how traces fall
into micro-batches changes nothing.

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
    """One sequence of tokens that the policy has seen and partly sampled.

    Attributes:
        branch_id: unique in its trace.
        ids: prompt, sampled tokens and those of the environment, in order.
        sampled: whether the policy sampled each of them; only these are trained.
        logprobs: natural-log probability of each sampled token when it was sampled; 0 elsewhere.
        versions: weight version that sampled each; -1 elsewhere.
        streams: numbers for each token, by name, written by the algorithm or the trainer; those of tokens that were not
            sampled count nowhere.

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
            raise ValueError(f"branch {self.branch_id}: its first token was sampled from nothing")
        for position, (sampled, logprob) in enumerate(zip(self.sampled, self.logprobs, strict=True)):
            if sampled and not -float("inf") < logprob <= 1e-3:
                raise ValueError(
                    f"branch {self.branch_id}: token {position} was sampled with log-probability {logprob}"
                )

    @property
    def num_sampled(self) -> int:
        """How many tokens are trained."""
        return sum(self.sampled)

    @property
    def index_T(self) -> Tensor:
        """Positions of the sampled tokens, int64."""
        return torch.tensor([n for n, sampled in enumerate(self.sampled) if sampled], dtype=torch.int64)


@dataclass
class Trace:
    """A rollout: everything that one attempt at a task made, in one branch or in several.

    Attributes:
        task_key: the task.
        group_id: traces of one group are compared with each other.
        rollout_id: unique.
        branches: what was sampled; compaction of the context and helpers of an agent make further ones.
        rewards: by name; ``reward`` is what is maximised.
        teacher: whose log-probabilities count, where there are several teachers.
        truncated: its last branch ended at the length limit.
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
        """The reward that is maximised."""
        return float(self.rewards["reward"])

    @property
    def num_sampled(self) -> int:
        """How many of its tokens are trained, over all branches."""
        return sum(branch.num_sampled for branch in self.branches)


@dataclass(frozen=True)
class PolicyTokens:
    """The sampled tokens of whole traces, as `Algorithm.loss` sees them; float32 or float64, all [T] unless said.

    Attributes:
        logprobs_T: of the policy that is trained; the only ones with a gradient, besides `values_T`.
        old_T: of the training engine before the first step on this batch.
        rollout_T: of the inference engine, when it sampled.
        advantages_T: written by the algorithm.
        weights_T: each token's share of the batch; the loss is a sum weighted with them.
        trace_T: int64, which of the traces a token belongs to.
        streams: further ones by name: ``reference``, ``teacher``, ``values``, ``returns``.
        values_T: of the critic that is trained, where the algorithm has one.
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
        """R."""
        return int(self.trace_T.max()) + 1 if self.trace_T.numel() else 0


@dataclass(frozen=True)
class PolicyLoss:
    """What a micro-batch adds to the loss.

    Attributes:
        parts: scalars by name; the gradient is that of their sum. Each is a sum over tokens with their weights.
        factor_T: what the correction multiplied each token's policy loss with, no gradient.
        metrics: scalars by name to be averaged over tokens, no gradient.
    """

    parts: dict[str, Tensor]
    factor_T: Tensor
    metrics: dict[str, Tensor]


class Algorithm(Protocol):
    """Scores traces and makes losses; its target is called as ``target(config, correction)``.

    Attributes:
        needs: streams that the trainer computes before `score`: ``reference``, ``teacher``, ``values``.
    """

    needs: frozenset[str]

    def score(self, traces: Sequence[Trace]) -> None:
        """Writes the streams ``advantages`` and ``weights`` of all branches of a batch, float32 [len(ids)]."""

    def loss(self, tokens: PolicyTokens) -> PolicyLoss:
        """Returns the loss of whole traces."""
