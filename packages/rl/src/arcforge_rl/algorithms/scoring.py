"""Converts rewards to advantages, and weights tokens. A trace with several branches counts once."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.errors import ArcforgeError
from arcforge_rl.configs.algorithms import ScoredConfig

EPSILON = 1e-6
"""Added to standard deviations, as in slime and TRL's predecessors."""


def groups(traces: Sequence[Trace]) -> dict[str, list[Trace]]:
    """Returns the traces by group, in order."""
    found: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        found[trace.group_id].append(trace)
    return dict(found)


def check_traces(traces: Sequence[Trace]) -> None:
    """Checks that a batch can be scored.

    Raises:
        ArcforgeError: there are no traces, a reward is not finite, an id is duplicate, or a trace has no sampled token.
    """
    if not traces:
        raise ArcforgeError("there are no traces to learn from")
    seen = set()
    for trace in traces:
        if trace.rollout_id in seen:
            raise ArcforgeError(f"two traces are called {trace.rollout_id}")
        seen.add(trace.rollout_id)
        if not math.isfinite(trace.reward):
            raise ArcforgeError(f"trace {trace.rollout_id} of task {trace.task_key}: its reward is {trace.reward}")
        if not trace.num_sampled:
            raise ArcforgeError(f"trace {trace.rollout_id} of task {trace.task_key} has no sampled token")


def repeated(traces: Sequence[Trace], values: Sequence[float]) -> Tensor:
    """Returns the value of each trace as often as the trace counts, float64 [sum of copies]."""
    copies = torch.tensor([trace.copies for trace in traces])
    return torch.tensor(values, dtype=torch.float64).repeat_interleave(copies)


def deviation(values_N: Tensor) -> Tensor:
    """Returns the unbiased standard deviation; 0 for a single value."""
    return values_N.std() if values_N.numel() > 1 else values_N.new_zeros(())


def advantages(
    traces: Sequence[Trace], config: ScoredConfig, reward: Callable[[Trace], float] = lambda trace: trace.reward
) -> list[float]:
    """Returns an advantage for each trace: its reward minus the baseline, divided by the scale.

    A trace with copies counts as that many traces in means and deviations.
    """
    found: dict[str, float] = {}
    everything_N = repeated(traces, [reward(trace) for trace in traces])
    for group in groups(traces).values():
        reward_G = repeated(group, [reward(trace) for trace in group])
        if config.baseline == "group":
            advantage_G = reward_G - reward_G.mean()
        elif config.baseline == "leave_one_out":
            others = max(len(reward_G) - 1, 1)
            advantage_G = reward_G - (reward_G.sum() - reward_G) / others if len(reward_G) > 1 else reward_G
        else:
            advantage_G = reward_G - (everything_N.mean() if config.baseline == "batch" else 0.0)
        if config.scale != "none":
            spread = deviation(reward_G if config.scale == "group" else everything_N)
            advantage_G = advantage_G / (spread + EPSILON)
        firsts = itertools.accumulate((trace.copies for trace in group[:-1]), initial=0)
        found |= {trace.rollout_id: float(advantage_G[n]) for trace, n in zip(group, firsts, strict=True)}
    return [found[trace.rollout_id] for trace in traces]


def shares(traces: Sequence[Trace], config: ScoredConfig) -> list[float]:
    """Returns the weight of each trace's tokens; the weights of a batch sum to 1, except with mean=constant.

    ``sequence`` is eq. 1: the mean over groups of the mean over a group's traces of the mean over a trace's tokens.
    """
    total = sum(trace.copies * trace.num_sampled for trace in traces)
    by_group = groups(traces)
    found = []
    for trace in traces:
        each = trace.copies / (len(by_group) * sum(other.copies for other in by_group[trace.group_id]))
        by_mean = {
            "sequence": each / trace.num_sampled,
            "token": trace.copies / total,
            "constant": each / config.max_tokens,
        }
        found.append(by_mean[config.mean])
    return found


def branches(traces: Sequence[Trace]) -> Iterator[tuple[Trace, Branch]]:
    """Yields every branch with its trace."""
    for trace in traces:
        for branch in trace.branches:
            yield trace, branch


def write(traces: Sequence[Trace], name: str, values: Sequence[float]) -> None:
    """Writes a stream with one value for all tokens of a trace."""
    for trace, value in zip(traces, values, strict=True):
        for branch in trace.branches:
            branch.streams[name] = torch.full((len(branch.ids),), value, dtype=torch.float32)


def has_spread(group: Sequence[Trace]) -> bool:
    """Returns whether a group's rewards differ, so that its advantages are not all 0."""
    values = [trace.reward for trace in group]
    return max(values) - min(values) > EPSILON
