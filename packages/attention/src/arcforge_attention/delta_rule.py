"""The gated delta rule over a batch, with its states in the cache; shared by the layers of linear attention.

Shapes: T new tokens, N segments of a group, H heads, K key size, V value size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from arcforge_core.contracts.attention import LayerCache, StateEntry
from arcforge_core.contracts.batch import Group, SequenceBatch
from arcforge_core.contracts.hardware import Binding
from arcforge_core.ops import op, reference


@dataclass(frozen=True)
class States:
    """The states of a step's sequences, zero for sequences without a past."""

    batch: SequenceBatch
    cache: LayerCache | None

    def read(self, entry: StateEntry, group: Group, like: Tensor) -> Tensor:
        """Returns a state [N, ...] of the group's segments, on the device of `like` and in its dtype or the entry's."""
        dtype = entry.dtype or like.dtype
        if group is self.batch.plan.prompt:
            return like.new_zeros((len(group.segments), *entry.shape), dtype=dtype)
        if self.cache is None:
            raise ValueError("segments with a past need a cache")
        return self.cache.read_state(entry.name, self.batch, group).to(dtype)

    def write(self, entry: StateEntry, group: Group, value_N: Tensor) -> None:
        """Replaces a state of the group's segments, if there is a cache."""
        if self.cache is not None:
            self.cache.write_state(entry.name, self.batch, group, value_N)


class DeltaRule(nn.Module):
    """The op ``gated_delta_rule`` with its states, fp32 or wider; no parameters."""

    def __init__(self, heads: int, key_dim: int, value_dim: int, scale: float) -> None:
        super().__init__()
        self.shape, self.scale = (heads, key_dim, value_dim), scale
        self.dtype = torch.float32
        self.gated_delta_rule = op(reference.gated_delta_rule, heads=heads, key_dim=key_dim, value_dim=value_dim)

    def ops_bound(self, binding: Binding) -> None:
        """Keeps states in the activations' dtype, at least fp32."""
        self.dtype = torch.promote_types(binding.dtype, torch.float32)

    @property
    def entry(self) -> StateEntry:
        """The cache entry of a sequence."""
        return StateEntry("state", self.shape, self.dtype)

    def forward(
        self, q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, states: States, group: Group
    ) -> Tensor:
        """Returns the outputs [T, H, V] of a group's tokens."""
        before_NHKV = states.read(self.entry, group, v_THV)
        out_THV, after_NHKV = self.gated_delta_rule(
            q_THK, k_THK, v_THV, g_TH, beta_TH, before_NHKV, group.cu_query, self.scale
        )
        states.write(self.entry, group, after_NHKV)
        return out_THV

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns ``6 H K V`` per token, whatever its position, three times: forward, and backward to both factors.

        Counts the three products of the recurrence: reading with the key, correcting, reading with the query.
        """
        heads, key_dim, value_dim = self.shape
        return torch.full_like(keys_T, 18 * heads * key_dim * value_dim)


def l2_normed(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divides the last axis by its L2 norm, computed in fp32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)
