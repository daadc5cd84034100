"""The algorithm contract: traces are scored into per-token streams, the tokens of a micro-batch into a loss.

The trainer is independent of the algorithm. It requests streams once per batch, packs whole traces into micro-batches,
and sums `Algorithm.loss` over them. Every token carries its share of the batch in `weights_T`, so the partition of
traces into micro-batches does not change the result.

T: tokens that the policy sampled, of all branches of a micro-batch; R: traces in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arcforge_core.contracts.environment import agent_reward
from arcforge_core.contracts.experts import Experts

Array = NDArray[Any]
COLUMNS = {"ids": np.int64, "sampled": np.bool_, "logprobs": np.float64, "versions": np.int64}
"""Of a branch, in the order of its constructor."""
SOLVER = "solver"
"""Name of the agent whose branches have none."""
MOST_LOGPROB = 1e-3
"""Rounding may leave a log-probability above 0; it is recorded as 0."""


class Branch:
    """One sequence of tokens, which the policy has read and partly sampled, recorded turn by turn.

    Tokens are appended and checked once, so recording a turn costs its own tokens. The columns are read-only arrays of
    all tokens so far; an array that was taken earlier does not change.

    Args:
        branch_id: unique in its trace.
        ids, sampled, logprobs, versions: the first tokens; see `extend`.
        agent: see the attribute.

    Attributes:
        branch_id: unique in its trace.
        agent: name of the agent that sampled it with the policy's weights; empty for the solver.
        streams: tensors with a number for each token, by name, written by the algorithm or the trainer; values at
            tokens that were not sampled are ignored.
        num_sampled: number of trained tokens.
        oldest_version: smallest weight version that sampled a token; -1 if none was sampled.

    Raises:
        ValueError: see `extend`.
    """

    def __init__(
        self,
        branch_id: str,
        ids: Sequence[int] | Array = (),
        sampled: Sequence[bool] | Array = (),
        logprobs: Sequence[float] | Array = (),
        versions: Sequence[int] | Array = (),
        *,
        agent: str = "",
    ) -> None:
        self.branch_id, self.agent = branch_id, agent
        self.streams: dict[str, Tensor] = {}
        self.num_sampled, self.oldest_version = 0, -1
        self._length = 0
        self._columns: dict[str, Array] = {name: np.empty(0, dtype) for name, dtype in COLUMNS.items()}
        self._experts_PLK: Experts | None = None
        self._routed = 0
        self.extend(ids, sampled, logprobs, versions)

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        """Whether two branches have the same name, agent and tokens; streams are not compared."""
        if not isinstance(other, Branch):
            return NotImplemented
        return (
            (self.branch_id, self.agent) == (other.branch_id, other.agent)
            and all(np.array_equal(self._column(name), other._column(name)) for name in COLUMNS)
            and (
                (self.experts is None and other.experts is None)
                or (
                    self.experts is not None
                    and other.experts is not None
                    and np.array_equal(self.experts, other.experts)
                )
            )
        )

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"Branch({self.branch_id!r}, {len(self)} tokens, {self.num_sampled} sampled)"

    def __getstate__(self) -> dict[str, Any]:
        columns = {name: self._column(name).copy() for name in COLUMNS}
        experts_PLK = self.experts
        return {**vars(self), "_columns": columns, "_experts_PLK": None if experts_PLK is None else experts_PLK.copy()}

    @property
    def ids(self) -> Array:
        """Prompt, sampled tokens and tokens of the environment, in order; int64 [len]."""
        return self._column("ids")

    @property
    def sampled(self) -> Array:
        """Whether the policy sampled each token; only these are trained. Bool [len]."""
        return self._column("sampled")

    @property
    def logprobs(self) -> Array:
        """Natural-log probability of each sampled token at the time of sampling; 0 elsewhere. Float64 [len]."""
        return self._column("logprobs")

    @property
    def versions(self) -> Array:
        """Weight version that sampled each token; -1 elsewhere. Int64 [len]."""
        return self._column("versions")

    @property
    def experts(self) -> Experts | None:
        """Experts that the engine chose at the first positions, [P, L, K]; None if it recorded none.

        The last sampled token is read in the turn after it, so that the choices end before it at the earliest.
        """
        if self._experts_PLK is None:
            return None
        view = self._experts_PLK[: self._routed]
        view.flags.writeable = False
        return view

    @property
    def routed(self) -> int:
        """Number of positions whose experts are known, P."""
        return self._routed

    @property
    def index_T(self) -> Tensor:
        """Positions of the sampled tokens, int64."""
        return torch.from_numpy(np.flatnonzero(self.sampled))

    def read(self, ids: Sequence[int]) -> None:
        """Appends tokens that the policy did not sample."""
        count = len(ids)
        self.extend(ids, [False] * count, [0.0] * count, [-1] * count)

    def sample(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Appends tokens that the policy sampled."""
        self.extend(ids, [True] * len(ids), logprobs, versions)

    def extend(
        self,
        ids: Sequence[int] | Array,
        sampled: Sequence[bool] | Array,
        logprobs: Sequence[float] | Array,
        versions: Sequence[int] | Array,
    ) -> None:
        """Appends tokens of both kinds; log-probabilities and versions of tokens that were not sampled are ignored.

        Raises:
            ValueError: columns of different lengths, a sampled first token, or a sampled token without a finite
                log-probability or a version; nothing has been appended.
        """
        if len(lengths := {len(ids), len(sampled), len(logprobs), len(versions)}) != 1:
            raise ValueError(f"branch {self.branch_id}: ids, sampled, logprobs and versions have lengths {lengths}")
        if not len(ids):
            return
        sampled_N = np.asarray(sampled, bool)
        logprobs_N = np.where(sampled_N, np.asarray(logprobs, np.float64), 0.0)
        versions_N = np.where(sampled_N, np.asarray(versions, np.int64), -1)
        if not self._length and sampled_N[0]:
            raise ValueError(f"branch {self.branch_id}: the first token must not be sampled")
        wrong_N = ~((-np.inf < logprobs_N) & (logprobs_N <= MOST_LOGPROB))
        for column_N, named, bad_N in (
            (logprobs_N, "log-probability", wrong_N),
            (versions_N, "version", sampled_N & (versions_N < 0)),
        ):
            if bad_N.any():
                first = int(bad_N.argmax())
                raise ValueError(
                    f"branch {self.branch_id}: token {self._length + first} was sampled with {named} {column_N[first]}"
                )
        logprobs_N = np.minimum(logprobs_N, 0.0)
        self._append({"ids": np.asarray(ids), "sampled": sampled_N, "logprobs": logprobs_N, "versions": versions_N})
        self.num_sampled += int(sampled_N.sum())
        if sampled_N.any():
            oldest = int(versions_N[sampled_N].min())
            self.oldest_version = oldest if self.oldest_version < 0 else min(self.oldest_version, oldest)

    def route(self, experts_PLK: Experts) -> None:
        """Appends the experts of the positions after those that are known.

        Raises:
            ValueError: of more positions than there are tokens, or of other layers; nothing has been appended.
        """
        begin, end = self._routed, self._routed + len(experts_PLK)
        if end > len(self):
            raise ValueError(f"branch {self.branch_id}: experts of {end} positions for {len(self)} tokens")
        kept = self._experts_PLK
        if kept is not None and (kept.shape[1:], kept.dtype) != (experts_PLK.shape[1:], experts_PLK.dtype):
            raise ValueError(f"branch {self.branch_id}: experts of {kept.shape[1:]}, then of {experts_PLK.shape[1:]}")
        if kept is None or end > len(kept):  # double the room, as for tokens
            room = np.empty((max(end, 2 * begin), *experts_PLK.shape[1:]), experts_PLK.dtype)
            room[:begin] = 0 if kept is None else kept[:begin]
            self._experts_PLK = kept = room
        kept[begin:end] = experts_PLK
        self._routed = end

    def named(self, branch_id: str, agent: str | None = None) -> Branch:
        """Returns a branch with another name, the same tokens and no streams; later tokens of one are not the other's.

        `agent` None keeps the agent. Copies nothing: only the branch with spare room in its buffers writes after the
        tokens that are there.
        """
        branch = Branch(branch_id, agent=self.agent if agent is None else agent)
        branch._length, branch.num_sampled, branch.oldest_version = len(self), self.num_sampled, self.oldest_version
        branch._columns = {name: column[: self._length] for name, column in self._columns.items()}
        branch._experts_PLK, branch._routed = self._experts_PLK, self._routed
        if self._experts_PLK is not None:
            branch._experts_PLK = self._experts_PLK[: self._routed]
        return branch

    def as_row(self) -> dict[str, list[Any]]:
        """Returns the columns as lists, for JSON."""
        return {name: self._column(name).tolist() for name in COLUMNS}

    def _column(self, name: str) -> Array:
        view = self._columns[name][: self._length]
        view.flags.writeable = False
        return view

    def _append(self, columns: Mapping[str, Array]) -> None:
        begin, end = self._length, self._length + len(columns["ids"])
        for name, column in columns.items():
            kept = self._columns[name]
            if end > len(kept):  # double the room, so that a token is moved once on average
                self._columns[name] = np.empty(max(end, 2 * len(kept)), COLUMNS[name])
                self._columns[name][:begin] = kept[:begin]
            self._columns[name][begin:end] = column
        self._length = end


@dataclass
class Trace:
    """A rollout: all tokens of one attempt at a task, in one or more branches.

    Attributes:
        task_key: the task.
        group_id: traces of one group are compared with each other.
        rollout_id: unique.
        branches: sampled sequences; context compaction and subagents create further ones.
        rewards: by name; ``reward`` is maximised.
        teacher: domain of the task, by which a teacher is chosen if there are several.
        truncated: the last branch ended at the length limit.
        copies: how often the trace counts in its group and in the batch. A group that lost rollouts to failures is
            filled up with copies (spec 8.2).
        stage: stage of training that its prompt comes from, empty if unknown; a teacher is chosen by it first.
        parts: in how many traces its rollout was split, see `by_agent`; it counts as that part of one.
    """

    task_key: str
    group_id: str
    rollout_id: str
    branches: list[Branch]
    rewards: Mapping[str, float]
    teacher: str = ""
    truncated: bool = False
    copies: int = 1
    stage: str = ""
    parts: int = 1

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ValueError(f"trace {self.rollout_id}: copies must be at least 1, not {self.copies}")

    @property
    def reward(self) -> float:
        """The reward to maximise."""
        return float(self.rewards["reward"])

    @property
    def num_sampled(self) -> int:
        """Number of trained tokens over all branches; a token counts once, whatever `copies` is."""
        return sum(branch.num_sampled for branch in self.branches)

    def by_agent(self) -> list[Trace]:
        """Returns a trace for each agent whose tokens are trained; itself if that is the solver alone.

        They have the same branches as this one. Each is compared with those of the same agent in its group, and its
        reward is ``reward_NAME`` if there is one of its agent's name.
        """
        names = list(dict.fromkeys(branch.agent for branch in self.branches if branch.num_sampled))
        if not any(names):
            return [self]
        return [
            replace(
                self,
                group_id=f"{self.group_id}/{name or SOLVER}",
                rollout_id=f"{self.rollout_id}/{name or SOLVER}",
                branches=[branch for branch in self.branches if branch.agent == name],
                rewards={**self.rewards, "reward": self.rewards.get(agent_reward(name), self.reward)},
                parts=len(names),
            )
            for name in names
        ]

    @property
    def oldest_version(self) -> int:
        """Smallest weight version that sampled a token, which decides how stale the trace is; -1 if none did."""
        return min((branch.oldest_version for branch in self.branches if branch.num_sampled), default=-1)


@dataclass(frozen=True)
class PolicyTokens:
    """The sampled tokens of whole traces, as `Algorithm.loss` receives them; float32 or float64, [T] unless noted.

    Attributes:
        logprobs_T: of the policy being trained; only these, `others_TK` and `values_T` have a gradient.
        old_T: of the training engine before the first step on this batch.
        rollout_T: of the inference engine at the time of sampling.
        advantages_T: written by the algorithm.
        weights_T: each token's share of the batch; the loss is the sum weighted by them.
        trace_T: int64, index of the token's trace.
        streams: further ones by name: ``reference``, ``teacher``, ``values``, ``returns``; ``teacher_others``, [T, K]:
            the log-probs of the tokens that the teacher finds likeliest in each place.
        values_T: of the critic being trained, if the algorithm has one.
        others_TK: the policy's log-probs of the same tokens, with a gradient; None or K = 0 if nobody asks for them.
    """

    logprobs_T: Tensor
    old_T: Tensor
    rollout_T: Tensor
    advantages_T: Tensor
    weights_T: Tensor
    trace_T: Tensor
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    values_T: Tensor | None = None
    others_TK: Tensor | None = None

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
    alone cannot be (assumed False), and ``equal_teaches``, whether a group of equal rewards teaches (assumed False);
    ``counts_rewards``, whether any reward counts (assumed True): if none does, no verifier runs; and ``uses_old``,
    whether the loss reads the policy before the step (assumed True): if not, it is not computed. One that changes in a
    run has ``step``, which the trainer sets to the number of finished steps before `score`.

    Attributes:
        needs: streams that the trainer computes before `score`: ``reference``, ``teacher``, ``values``.
    """

    needs: frozenset[str]

    def score(self, traces: Sequence[Trace]) -> None:
        """Writes the streams ``advantages`` and ``weights`` of all branches of a batch, float32 [len(ids)]."""

    def loss(self, tokens: PolicyTokens) -> PolicyLoss:
        """Returns the loss of whole traces."""
