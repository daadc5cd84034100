"""Naive attention, one segment and one code path at a time: the baseline for all other variants.

MLA (spec 1.3) and GQA differ only in the entries that a token caches (`project`) and in how keys and values are
computed from them (`expand`). Parameters are named as in the real variants, so that weights can be copied.

Shapes: T new tokens, S visible keys, D hidden, H heads, K key and V value size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheEntry, CacheSpec, LayerCache, Rope
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.errors import ConfigError
from arcforge_core.model.norm import Linear, RMSNorm
from arcforge_core.model.rope import softmax_factor
from arcforge_core.ops import reference


class ReferenceAttention(nn.Module):
    """MLA in expanded form, or GQA, without any kernel."""

    def __init__(self, config: ReferenceAttentionConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__()
        self.sizes, self.form, hidden = model, config.form, model.hidden_size
        self.heads = model.num_attention_heads
        if self.form == "mla":
            self.key, self.value = model.qk_nope_head_dim + model.qk_rope_head_dim, model.v_head_dim
            self.q_a_proj = Linear(hidden, model.q_lora_rank)
            self.q_a_layernorm = RMSNorm(model.q_lora_rank, model.latent_norm_eps)
            self.q_b_proj = Linear(model.q_lora_rank, self.heads * self.key)
            self.kv_a_proj_with_mqa = Linear(hidden, model.kv_lora_rank + model.qk_rope_head_dim)
            self.kv_a_layernorm = RMSNorm(model.kv_lora_rank, model.latent_norm_eps)
            self.kv_b_proj = Linear(model.kv_lora_rank, self.heads * (model.qk_nope_head_dim + self.value))
        else:
            self.key = self.value = model.head_dim
            self.q_proj = Linear(hidden, self.heads * self.key)
            self.k_proj = Linear(hidden, model.num_key_value_heads * self.key)
            self.v_proj = Linear(hidden, model.num_key_value_heads * self.value)
        self.scale = self.key**-0.5 * (softmax_factor(model.rope_scaling) if self.form == "mla" else 1.0)
        self.o_proj = Linear(self.heads * self.value, hidden)

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks GQA's head counts and rotated part; MLA takes any sizes."""
        assert isinstance(config, ReferenceAttentionConfig)
        if config.form == "gqa" and model.num_attention_heads % model.num_key_value_heads:
            accepted = f"must divide num_attention_heads={model.num_attention_heads}"
            raise ConfigError("model.num_key_value_heads", model.num_key_value_heads, accepted)
        if config.form == "gqa" and model.qk_rope_head_dim > model.head_dim:
            accepted = f"gqa rotates part of a head: must be at most head_dim={model.head_dim}"
            raise ConfigError("model.qk_rope_head_dim", model.qk_rope_head_dim, accepted)

    def forward(
        self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache | None = None, *, rope: Rope
    ) -> AttentionOutput:
        """Attends segment by segment; see the contract."""
        if cache is None and bool(batch.past.any()):
            raise ValueError("segments with a past need a cache")
        q_THK, entries = self.project_mla(x_TD, rope) if self.form == "mla" else self.project_gqa(x_TD, rope)
        if cache is not None:
            cache.write(batch, **entries)
        out_THV = x_TD.new_zeros(len(x_TD), self.heads, self.value)
        for group in batch.plan.groups():
            seen = {name: group.take(value_T) for name, value_T in entries.items()}
            if cache is not None:
                seen = {name: cache.read(name, batch, group).to(x_TD.dtype) for name in entries}
            segments = reference.segments(group.cu_query, group.cu_key)
            for n, (_, keys) in zip(group.segments, segments, strict=True):
                rows = slice(int(batch.cu_query[n]), int(batch.cu_query[n + 1]))
                k_SHK, v_SHV = self.expand(*(value_S[keys] for value_S in seen.values()))
                scores_HTS = torch.einsum("thk,shk->hts", q_THK[rows], k_SHK) * self.scale
                visible_TS = reference.causal_mask(scores_HTS.shape[1], scores_HTS.shape[2], x_TD.device)
                wide = torch.promote_types(x_TD.dtype, torch.float32)
                probs_HTS = torch.softmax(scores_HTS.masked_fill(~visible_TS, -torch.inf), -1, dtype=wide)
                out_THV[rows] = torch.einsum("hts,shv->thv", probs_HTS.to(x_TD.dtype), v_SHV)
        return AttentionOutput(self.o_proj(out_THV.flatten(1)))

    def project_mla(self, x_TD: Tensor, rope: Rope) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns queries ``[nope | rope]`` and the latent and rope entries."""
        rotary = self.sizes.qk_rope_head_dim
        q_THK = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_TD))).view(-1, self.heads, self.key)
        q_THK = torch.cat((q_THK[..., :-rotary], reference.rope(q_THK[..., -rotary:], *rope)), -1)
        mixed = self.kv_a_proj_with_mqa(x_TD)
        k_rope_TR = reference.rope(mixed[:, None, -rotary:], *rope)[:, 0]
        return q_THK, {"latent": self.kv_a_layernorm(mixed[:, :-rotary]), "rope": k_rope_TR}

    def project_gqa(self, x_TD: Tensor, rope: Rope) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns queries and the key and value entries; the first dimensions of a head are rotated."""
        rotary, heads = self.sizes.qk_rope_head_dim, []
        for proj in (self.q_proj, self.k_proj):
            x_THK = proj(x_TD).view(len(x_TD), -1, self.key)
            heads.append(torch.cat((reference.rope(x_THK[..., :rotary], *rope), x_THK[..., rotary:]), -1))
        return heads[0], {"key": heads[1], "value": self.v_proj(x_TD).view(len(x_TD), -1, self.value)}

    def expand(self, first_S: Tensor, second_S: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys [S, H, K] and values [S, H, V] of all heads, computed from a segment's two entries."""
        if self.form == "gqa":
            repeat = self.heads // self.sizes.num_key_value_heads
            return first_S.repeat_interleave(repeat, 1), second_S.repeat_interleave(repeat, 1)
        kv_SHX = self.kv_b_proj(first_S).view(len(first_S), self.heads, -1)
        k_SHN, v_SHV = kv_SHX.split((self.sizes.qk_nope_head_dim, self.value), -1)
        return torch.cat((k_SHN, second_S[:, None].expand(-1, self.heads, -1)), -1), v_SHV

    def cache_spec(self) -> CacheSpec:
        """Returns latent and rope part for MLA, key and value heads for GQA."""
        model = self.sizes
        if self.form == "mla":
            return CacheEntry("latent", (model.kv_lora_rank,)), CacheEntry("rope", (model.qk_rope_head_dim,))
        shape = (model.num_key_value_heads, model.head_dim)
        return CacheEntry("key", shape), CacheEntry("value", shape)

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns ``2 H (key + value)`` per key, three times: forward, and backward to both factors."""
        return 6 * self.heads * (self.key + self.value) * keys_T

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels MLA's two per-head up-projections."""
        if self.form == "gqa":
            return {}
        return {
            "q_b_proj.weight": ParameterRole("head_matrix", self.heads, (self.key,), self.sizes.qk_rope_head_dim),
            "kv_b_proj.weight": ParameterRole("head_matrix", self.heads, (self.sizes.qk_nope_head_dim, self.value)),
        }
