"""Generated traces for tests of algorithms, and their tokens as a micro-batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import Branch, PolicyTokens, Trace

Streams = dict[str, Tensor]


def make_branch(draw: random.Random, name: str, sampled: int, prompt: int = 2, between: int = 0) -> Branch:
    """Returns a prompt and sampled tokens, with `between` tokens of the environment in their middle."""
    kinds = [False] * prompt + [True] * (sampled // 2) + [False] * between + [True] * (sampled - sampled // 2)
    logprobs = [-draw.uniform(0.05, 3.0) if kind else 0.0 for kind in kinds]
    versions = [0 if kind else -1 for kind in kinds]
    return Branch(name, [draw.randrange(100) for _ in kinds], kinds, logprobs, versions)


def make_traces(seed: int, group_sizes: Sequence[int], branches: int = 1, most: int = 5) -> list[Trace]:
    """Returns groups of traces with rewards between 0 and 1; each has up to `branches` branches."""
    draw = random.Random(seed)
    traces = []
    for group, size in enumerate(group_sizes):
        for number in range(size):
            name = f"{group}.{number}"
            parts = [
                make_branch(draw, f"{name}.{k}", draw.randint(1, most), between=draw.randint(0, 2))
                for k in range(draw.randint(1, branches))
            ]
            rewards = {"reward": draw.choice((0.0, 0.25, 1.0, draw.random()))}
            traces.append(Trace(f"task {group}", f"group {group}", name, parts, rewards))
    return traces


def add_stream(traces: Sequence[Trace], name: str, seed: int, spread: float = 0.5) -> None:
    """Writes a stream of log-probabilities near the sampled ones, or of numbers around 0 for ``values``."""
    draw = torch.Generator().manual_seed(seed)
    for trace in traces:
        for branch in trace.branches:
            noise = spread * torch.randn(len(branch.ids), generator=draw, dtype=torch.float64)
            centre = 0.0 if name == "values" else torch.tensor(branch.logprobs, dtype=torch.float64)
            branch.streams[name] = centre + noise if name == "values" else (centre + noise).clamp(max=-1e-3)


def tokens_of(traces: Sequence[Trace], current: Streams, **more: Tensor) -> PolicyTokens:
    """Returns the sampled tokens of traces, float64.

    Args:
        traces: scored, with the stream ``old``.
        current: log-probabilities of the current policy by branch, float64 [len(ids)].
        more: additional fields.
    """
    parts = [(n, branch, branch.index_T) for n, trace in enumerate(traces) for branch in trace.branches]

    def stream(name: str) -> Tensor:
        return torch.cat([branch.streams[name][index_T].double() for _, branch, index_T in parts])

    names = {name for _, branch, _ in parts for name in branch.streams}
    return PolicyTokens(
        logprobs_T=torch.cat([current[branch.branch_id][index_T] for _, branch, index_T in parts]),
        old_T=stream("old"),
        rollout_T=torch.cat([torch.tensor(b.logprobs, dtype=torch.float64)[index_T] for _, b, index_T in parts]),
        advantages_T=stream("advantages"),
        weights_T=stream("weights"),
        trace_T=torch.cat([torch.full_like(index_T, n) for n, _, index_T in parts]),
        streams={name: stream(name) for name in names & {"reference", "teacher", "values", "returns"}},
        **more,
    )
