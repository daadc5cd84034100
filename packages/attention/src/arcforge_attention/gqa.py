"""Grouped-query attention with partial interleaved RoPE and optional per-head QK-norm and biases (GLM-4.5's variant).

The first ``model.qk_rope_head_dim`` dimensions of every head are rotated.

Shapes: T new tokens, S visible keys, D hidden, H heads, G key/value heads, K head size.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor, nn

from arcforge_attention.configs import GqaConfig
from arcforge_attention.entries import Entries, join
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheEntry, CacheSpec, LayerCache, Rope
from arcforge_core.contracts.batch import Group, SequenceBatch
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.errors import ConfigError
from arcforge_core.model.norm import Linear, RMSNorm
from arcforge_core.ops import op, reference


class GQA(nn.Module):
    """Grouped-query attention; head h reads key/value head ``h // (H / G)``."""

    starts_from: ClassVar[tuple[str, ...]] = ("swa", "swa_pattern", "simple_gdn")
    shares_prefixes: ClassVar[bool] = True

    def __init__(self, config: GqaConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__()
        self.heads, self.groups = model.num_attention_heads, model.num_key_value_heads
        self.head_dim, self.rotary = model.head_dim, model.qk_rope_head_dim
        self.scale = self.head_dim**-0.5
        self.q_proj = Linear(model.hidden_size, self.heads * self.head_dim, bias=config.bias)
        self.k_proj = Linear(model.hidden_size, self.groups * self.head_dim, bias=config.bias)
        self.v_proj = Linear(model.hidden_size, self.groups * self.head_dim, bias=config.bias)
        self.o_proj = Linear(self.heads * self.head_dim, model.hidden_size)
        self.q_norm = RMSNorm(self.head_dim, model.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, model.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.rope = op(reference.rope, dim=self.rotary)
        sizes = {"heads": self.heads, "kv_heads": self.groups, "key_dim": self.head_dim, "value_dim": self.head_dim}
        self.attention_varlen = op(reference.attention_varlen, **sizes)
        self.attention_decode = op(reference.attention_decode, **sizes)

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks that heads divide into groups and that the rotated part fits into a head."""
        if model.num_attention_heads % model.num_key_value_heads:
            accepted = f"must divide num_attention_heads={model.num_attention_heads}"
            raise ConfigError("model.num_key_value_heads", model.num_key_value_heads, accepted)
        if model.qk_rope_head_dim > model.head_dim:
            accepted = f"{config.name} rotates part of a head: must be at most head_dim={model.head_dim}"
            raise ConfigError("model.qk_rope_head_dim", model.qk_rope_head_dim, accepted)

    def forward(
        self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache | None = None, *, rope: Rope
    ) -> AttentionOutput:
        """Attends; see the contract."""
        q_THK, k_TGK, v_TGK = self.project(x_TD, rope)
        entries = Entries.store(batch, cache, key=k_TGK, value=v_TGK)
        outs = [self.attend(group.take(q_THK), entries, group) for group in batch.plan.groups()]
        return AttentionOutput(self.o_proj(join(batch, outs).flatten(1)))

    def write_cache(self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache, *, rope: Rope) -> None:
        """Writes keys and values; see `WritesCache`."""
        k_TGK, v_TGK = (proj(x_TD).unflatten(-1, (-1, self.head_dim)) for proj in (self.k_proj, self.v_proj))
        cache.write(batch, key=self._rotate(self.k_norm(k_TGK), rope), value=v_TGK)

    def project(self, x_TD: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries [T, H, K], keys and values [T, G, K]; rotates queries and keys if `rope` is given."""
        q_THK, k_TGK, v_TGK = (
            proj(x_TD).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q_THK, k_TGK = self.q_norm(q_THK), self.k_norm(k_TGK)
        if rope is not None:
            q_THK, k_TGK = self._rotate(q_THK, rope), self._rotate(k_TGK, rope)
        return q_THK, k_TGK, v_TGK

    def attend(self, q_THK: Tensor, entries: Entries, group: Group) -> Tensor:
        """Attends to every visible key of the group; returns [T, H, K]."""
        if group is entries.batch.plan.decode:
            (k_SGK, pages), (v_SGK, _) = entries.paged("key", group), entries.paged("value", group)
            return self.attention_decode(q_THK, k_SGK, v_SGK, group.cu_query, group.cu_key, self.scale, pages)
        k_SGK, v_SGK = entries.read("key", group), entries.read("value", group)
        return self.attention_varlen(q_THK, k_SGK, v_SGK, group.cu_query, group.cu_key, self.scale)

    def branch(self, batch: SequenceBatch) -> Hashable:
        """Returns a constant, because all steps call the same kernels; see `Recordable`."""
        return "dense"

    def _rotate(self, x_THK: Tensor, rope: Rope) -> Tensor:
        if self.rotary == self.head_dim:
            return self.rope(x_THK, *rope)
        rotated = self.rope(x_THK[..., : self.rotary], *rope)
        return torch.cat((rotated, x_THK[..., self.rotary :]), dim=-1)

    def cache_spec(self) -> CacheSpec:
        """Returns keys and values of the key/value heads."""
        shape = (self.groups, self.head_dim)
        return CacheEntry("key", shape), CacheEntry("value", shape)

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns ``4 H K`` per key, three times: forward, and backward to both factors."""
        return 12 * self.heads * self.head_dim * keys_T

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels nothing: the default rule fits these matrices and norms."""
        return {}
