"""Converts rewards to advantages, and weights tokens. A trace with several branches counts once."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.episodes.rewards import TOTAL
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


def decoupled(traces: Sequence[Trace], config: ScoredConfig, weights: Mapping[str, float]) -> list[float]:
    """Returns an advantage for each trace from components that are normalised apart, as in GDPO (arXiv 2601.05242).

    The advantages of each component within its group are summed by weight, and the sums are normalised over the batch.
    So a component with a small spread counts as much as one with a great spread. One whose values are equal up to
    rounding within a group adds 0 there.

    Args:
        traces: with the values of the components in their rewards.
        config: how a component's values become advantages.
        weights: of the components.
    """
    flat = {
        (group[0].group_id, name): not has_spread(group, (name,))
        for group in groups(traces).values()
        for name in weights
    }
    total_N = torch.zeros(len(traces), dtype=torch.float64)
    for name, weight in weights.items():
        apart = advantages(traces, config, lambda trace, name=name: trace.rewards[name])  # type: ignore[misc]
        kept = [0.0 if flat[t.group_id, name] else value for t, value in zip(traces, apart, strict=True)]
        total_N += weight * torch.tensor(kept, dtype=torch.float64)
    everything_N = repeated(traces, total_N.tolist())
    found: list[float] = ((total_N - everything_N.mean()) / (deviation(everything_N) + EPSILON)).tolist()
    return found


def shares(traces: Sequence[Trace], config: ScoredConfig) -> list[float]:
    """Returns the weight of each trace's tokens; the weights of a batch sum to 1, except with mean=constant.

    ``sequence`` is eq. 1: the mean over groups of the mean over a group's traces of the mean over a trace's tokens.
    The groups of a task's agents count as one together.
    """
    total = sum(trace.copies * trace.num_sampled for trace in traces)
    by_group = groups(traces)
    copies = {name: sum(trace.copies for trace in group) for name, group in by_group.items()}
    tasks = sum(sum(trace.copies / trace.parts for trace in group) / copies[name] for name, group in by_group.items())
    found = []
    for trace in traces:
        each = trace.copies / (tasks * copies[trace.group_id] * trace.parts)
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


def has_spread(group: Sequence[Trace], names: Sequence[str] = (TOTAL,)) -> bool:
    """Returns whether one of a group's rewards of these names differs, so that its advantages are not all 0."""
    for name in names:
        values = [trace.rewards[name] for trace in group]
        if max(values) - min(values) > EPSILON:
            return True
    return False
