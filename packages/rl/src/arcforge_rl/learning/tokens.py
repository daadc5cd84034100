"""Packing: whole traces into micro-batches of ragged tokens.

T: tokens of a micro-batch; S: those that the policy sampled; N: branches; R: traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.contracts.batch import SequenceBatch


@dataclass(frozen=True)
class PolicyMicro:
    """Whole traces as one ragged batch.

    Attributes:
        tokens_T: int64, every branch up to the token before its last sampled one.
        batch: its segments, a branch each.
        row_S: int64, the row of `tokens_T` whose hidden state predicts each sampled token.
        target_S: int64, the sampled tokens.
        rollout_S: fp32, their log-probabilities when they were sampled.
        trace_S: int64, the trace in `traces` of each.
        streams: fp32 [S] by name.
        traces: in order.
    """

    tokens_T: Tensor
    batch: SequenceBatch
    row_S: Tensor
    target_S: Tensor
    rollout_S: Tensor
    trace_S: Tensor
    streams: Mapping[str, Tensor]
    traces: Sequence[Trace]

    def to(self, device: torch.device | str) -> PolicyMicro:
        """Returns it with its tensors on a device."""
        moved = {name: getattr(self, name).to(device) for name in ("tokens_T", "row_S", "target_S")}
        moved |= {name: getattr(self, name).to(device) for name in ("rollout_S", "trace_S")}
        streams = {name: stream_S.to(device) for name, stream_S in self.streams.items()}
        return replace(self, batch=self.batch.to(device), streams=streams, **moved)

    def branches(self) -> list[Branch]:
        """Returns the branches that have sampled tokens, in the order of the segments."""
        return [branch for trace in self.traces for branch in trace.branches if branch.num_sampled]


def pack(traces: Sequence[Trace], max_tokens: int) -> list[PolicyMicro]:
    """Returns micro-batches of at most `max_tokens` tokens; a longer trace gets one of its own. No trace is cut."""
    parts: list[list[Trace]] = []
    room = 0
    for trace in traces:
        length = sum(_length(branch) for branch in trace.branches)
        if not parts or length > room:
            parts.append([])
            room = max_tokens
        parts[-1].append(trace)
        room -= length
    return [_micro(part) for part in parts]


def write_stream(micro: PolicyMicro, name: str, value_S: Tensor) -> None:
    """Writes what was computed for the sampled tokens of a micro-batch into its branches, fp32."""
    branches = micro.branches()
    for branch, part_S in zip(
        branches, value_S.float().cpu().split([branch.num_sampled for branch in branches]), strict=True
    ):
        branch.streams[name] = torch.zeros(len(branch.ids)).index_copy_(0, branch.index_T, part_S)


def _length(branch: Branch) -> int:
    """Returns how many tokens must be read to predict the branch's last sampled one."""
    return int(branch.index_T[-1]) if branch.num_sampled else 0


def _micro(traces: list[Trace]) -> PolicyMicro:
    tokens: list[int] = []
    lengths, rows, targets, rollout, owners = [], [], [], [], []
    streams: dict[str, list[Tensor]] = {}
    for number, trace in enumerate(traces):
        for branch in trace.branches:
            if not branch.num_sampled:
                continue
            index_S = branch.index_T
            rows.append(index_S - 1 + len(tokens))
            lengths.append(_length(branch))
            tokens += branch.ids[: lengths[-1]]
            targets.append(torch.tensor(branch.ids)[index_S])
            rollout.append(torch.tensor(branch.logprobs, dtype=torch.float32)[index_S])
            owners.append(torch.full_like(index_S, number))
            for name, stream_T in branch.streams.items():
                streams.setdefault(name, []).append(stream_T[index_S])
    return PolicyMicro(
        torch.tensor(tokens, dtype=torch.int64),
        SequenceBatch.build(lengths),
        torch.cat(rows),
        torch.cat(targets),
        torch.cat(rollout),
        torch.cat(owners),
        {name: torch.cat(parts) for name, parts in streams.items()},
        traces,
    )
