"""Naive attention, the yardstick of all others: MLA always expanded, or GQA, one segment after another.

Parameter names are those of the real variants, so their weights load here. Shapes: T tokens, S keys, D hidden, H heads,
G key/value heads, C latent, R rotary dims.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheEntry, LayerCache
from arcforge_core.contracts.batch import Group, SequenceBatch
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.errors import ConfigError
from arcforge_core.model.norm import Linear, RMSNorm
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Binder


class ReferenceAttention(nn.Module):
    """Target of ``attention=reference``: constructs the configured form."""

    heads: int
    key_size: int
    value: int
    o_proj: Linear

    def __new__(cls, config: ReferenceAttentionConfig, model: ModelConfig, layer_index: int) -> ReferenceAttention:
        return super().__new__(FORMS[config.form])

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Refuses sizes that GQA cannot have; MLA takes any."""
        assert isinstance(config, ReferenceAttentionConfig)
        if config.form == "gqa" and model.num_attention_heads % model.num_key_value_heads:
            accepted = f"must divide num_attention_heads={model.num_attention_heads}"
            raise ConfigError("model.num_key_value_heads", model.num_key_value_heads, accepted)
        if config.form == "gqa" and model.qk_rope_head_dim > model.head_dim:
            accepted = f"must be at most head_dim={model.head_dim}"
            raise ConfigError("model.qk_rope_head_dim", model.qk_rope_head_dim, accepted)

    def forward(
        self,
        x_TD: Tensor,
        batch: SequenceBatch,
        cache: LayerCache | None = None,
        *,
        rope: tuple[Tensor, Tensor],
    ) -> AttentionOutput:
        """Attends group by group; see the contract."""
        q_THK, entries = self.project(x_TD, rope)
        if cache is not None:
            cache.write(batch, **entries)
        out: Tensor | None = None
        for group in batch.plan.groups():
            keys, values = self.expand(self._visible(entries, batch, group, cache))
            attended = reference.attention_varlen(
                group.take(q_THK), keys, values, group.cu_query, group.cu_key, self.key_size**-0.5
            )
            out = group.put(out, attended, batch.num_tokens)
        assert out is not None
        return AttentionOutput(self.o_proj(out.flatten(1)))

    def _visible(
        self, entries: dict[str, Tensor], batch: SequenceBatch, group: Group, cache: LayerCache | None
    ) -> dict[str, Tensor]:
        if cache is None:
            return {name: group.take(value) for name, value in entries.items()}
        dtype = next(iter(entries.values())).dtype
        return {name: cache.read(name, batch, group).to(dtype) for name in entries}

    def project(self, x_TD: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns rotated queries [T, H, key_size] and the entries to cache."""
        raise TypeError("ReferenceAttention constructs one of its forms")

    def expand(self, entries: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns keys and values per (key/value) head."""
        raise TypeError("ReferenceAttention constructs one of its forms")

    def flops_per_pair(self) -> int:
        """Scores and weighted sum: 2 (key + value) per head."""
        return 2 * self.heads * (self.key_size + self.value)

    def bind_ops(self, bind: Binder) -> None:
        """Stays on the references: it is the yardstick."""


class ReferenceMLA(ReferenceAttention):
    """Multi-head latent attention (spec 1.3) that expands every cached latent."""

    def __init__(self, config: ReferenceAttentionConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__()
        heads, nope, rope, value = (
            model.num_attention_heads,
            model.qk_nope_head_dim,
            model.qk_rope_head_dim,
            model.v_head_dim,
        )
        self.heads, self.nope, self.rope_dim, self.value = heads, nope, rope, value
        self.latent = model.kv_lora_rank
        self.q_a_proj = Linear(model.hidden_size, model.q_lora_rank)
        self.q_a_layernorm = RMSNorm(model.q_lora_rank, model.latent_norm_eps)
        self.q_b_proj = Linear(model.q_lora_rank, heads * (nope + rope))
        self.kv_a_proj_with_mqa = Linear(model.hidden_size, model.kv_lora_rank + rope)
        self.kv_a_layernorm = RMSNorm(model.kv_lora_rank, model.latent_norm_eps)
        self.kv_b_proj = Linear(model.kv_lora_rank, heads * (nope + value))
        self.o_proj = Linear(heads * value, model.hidden_size)
        self.key_size = nope + rope

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels the per-head up-projections."""
        return {
            "q_b_proj.weight": ParameterRole("head_matrix", self.heads, (self.nope + self.rope_dim,)),
            "kv_b_proj.weight": ParameterRole("head_matrix", self.heads, (self.nope, self.value)),
        }

    def project(self, x_TD: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns queries [T, H, nope + rope] and the entries to cache."""
        q_THK = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_TD))).view(-1, self.heads, self.nope + self.rope_dim)
        nope_THN, rope_THR = q_THK.split((self.nope, self.rope_dim), dim=-1)
        latent_TC, key_TR = self.kv_a_proj_with_mqa(x_TD).split((self.latent, self.rope_dim), dim=-1)
        entries = {
            "latent": self.kv_a_layernorm(latent_TC),
            "rope": reference.rope(key_TR[:, None], *rope)[:, 0],
        }
        return torch.cat([nope_THN, reference.rope(rope_THR, *rope)], dim=-1), entries

    def expand(self, entries: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns keys [S, H, nope + rope] and values [S, H, value]."""
        expanded = self.kv_b_proj(entries["latent"]).view(-1, self.heads, self.nope + self.value)
        nope_SHN, v_SHV = expanded.split((self.nope, self.value), dim=-1)
        rope_SHR = entries["rope"][:, None].expand(-1, self.heads, -1)
        return torch.cat([nope_SHN, rope_SHR], dim=-1), v_SHV

    def cache_spec(self) -> tuple[CacheEntry, ...]:
        """One latent and one rotary key per token, shared by all heads."""
        return CacheEntry("latent", (self.latent,)), CacheEntry("rope", (self.rope_dim,))


class ReferenceGQA(ReferenceAttention):
    """Grouped-query attention whose first rotary dims of each head are rotated."""

    def __init__(self, config: ReferenceAttentionConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head_dim = (
            model.num_attention_heads,
            model.num_key_value_heads,
            model.head_dim,
        )
        self.rope_dim = model.qk_rope_head_dim
        self.q_proj = Linear(model.hidden_size, self.heads * self.head_dim)
        self.k_proj = Linear(model.hidden_size, self.groups * self.head_dim)
        self.v_proj = Linear(model.hidden_size, self.groups * self.head_dim)
        self.o_proj = Linear(self.heads * self.head_dim, model.hidden_size)
        self.value = self.key_size = self.head_dim

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Nothing beyond the default rule."""
        return {}

    def project(self, x_TD: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns queries [T, H, head_dim] and the entries to cache."""

        def rotate(x_THK: Tensor) -> Tensor:
            turned_THR = reference.rope(x_THK[..., : self.rope_dim], *rope)
            return torch.cat([turned_THR, x_THK[..., self.rope_dim :]], dim=-1)

        q_THK = rotate(self.q_proj(x_TD).view(-1, self.heads, self.head_dim))
        key_TGK = rotate(self.k_proj(x_TD).view(-1, self.groups, self.head_dim))
        return q_THK, {"key": key_TGK, "value": self.v_proj(x_TD).view(-1, self.groups, self.head_dim)}

    def expand(self, entries: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns keys and values as they are cached."""
        return entries["key"], entries["value"]

    def cache_spec(self) -> tuple[CacheEntry, ...]:
        """Keys and values of every group."""
        shape = (self.groups, self.head_dim)
        return CacheEntry("key", shape), CacheEntry("value", shape)


FORMS: dict[str, type[ReferenceAttention]] = {"mla": ReferenceMLA, "gqa": ReferenceGQA}
