"""Multi-head latent attention (spec 1.3): queries and keys/values pass through low-rank latents.

Two forms of the same function. Expanded: keys and values of every head are computed from the latents (training,
prompts, chunks). Absorbed: the key up-projection moves into the query and the value up-projection after the softmax, so
all heads share the cached ``[latent | rope]`` entry (few tokens with a cache). Both use the softmax scale of the
expanded head size.

Shapes: T new tokens, S visible keys, D hidden, Q query latent, C key/value latent (in ``kv_SC`` and ``q_THC`` with the
rope part), H heads, N nope, R rope, V value size of a head.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from arcforge_attention import latent_records
from arcforge_attention.configs import MlaConfig
from arcforge_attention.entries import Entries, join
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheEntry, CacheSpec, LayerCache, Rope
from arcforge_core.contracts.batch import Group, Pages, SequenceBatch
from arcforge_core.contracts.hardware import Binding
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.errors import ConfigError
from arcforge_core.model.norm import Linear, RMSNorm
from arcforge_core.model.rope import softmax_factor
from arcforge_core.ops import Fused, op, reference

LATENTS = ("q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm")
"""The modules before the per-head projections."""
TURNABLE = {"q_a_QD": "q_a_proj.weight", "q_b_JQ": "q_b_proj.weight", "kv_a_CD": "kv_a_proj_with_mqa.weight"}
"""Weights of the fused projections that a chip may keep in a layout of its own."""
WHOLE = (*LATENTS, "q_b_proj", "kv_b_proj")
"""Those with them."""


class MLA(nn.Module):
    """Multi-head latent attention; parameters are named as in Hugging Face checkpoints (spec 1.7)."""

    starts_from: ClassVar[tuple[str, ...]] = ("dsa",)
    shares_prefixes: ClassVar[bool] = True
    in_one_op: ClassVar[bool] = True

    def __init__(self, config: MlaConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__()
        self.form = config.form
        self.heads, self.latent = model.num_attention_heads, model.kv_lora_rank
        self.nope, self.rotary, self.value = model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
        self.scale = (self.nope + self.rotary) ** -0.5 * softmax_factor(model.rope_scaling)
        self.q_a_proj = Linear(model.hidden_size, model.q_lora_rank)
        self.q_a_layernorm = RMSNorm(model.q_lora_rank, model.latent_norm_eps)
        self.q_b_proj = Linear(model.q_lora_rank, self.heads * (self.nope + self.rotary))
        self.kv_a_proj_with_mqa = Linear(model.hidden_size, self.latent + self.rotary)
        self.kv_a_layernorm = RMSNorm(self.latent, model.latent_norm_eps)
        self.kv_b_proj = Linear(self.latent, self.heads * (self.nope + self.value))
        self.o_proj = Linear(self.heads * self.value, model.hidden_size)
        self.latent_cache = torch.int8 if config.latent_cache == "int8" else None
        self.absorbed, self.deterministic = self.form == "absorbed", False
        key, entry = self.nope + self.rotary, self.latent + self.rotary
        self.rope = op(reference.rope, dim=self.rotary)
        self.attention_varlen = op(
            reference.attention_varlen, heads=self.heads, kv_heads=self.heads, key_dim=key, value_dim=self.value
        )
        self.mla_decode = op(reference.mla_decode, heads=self.heads, key_dim=entry, latent_dim=self.latent)
        self.head_linear = op(reference.head_linear, heads=self.heads)
        self.hadamard = op(reference.hadamard, width=self.latent)
        self.to_records = op(reference.to_records, width=self.latent)
        self.prolog = self._fused("mla_prolog", LATENTS, hidden=model.hidden_size, latent=self.latent)
        self.projection = self._fused(
            "mla_project", WHOLE, TURNABLE, hidden=model.hidden_size,
            query_latent=model.q_lora_rank, latent=self.latent, heads=self.heads, nope=self.nope, rotary=self.rotary,
        )  # fmt: skip
        one_op = self.in_one_op and config.step == "auto"
        self.whole = self._fused(
            "mla_layer", (*WHOLE, "o_proj") if one_op else (), hidden=model.hidden_size,
            query_latent=model.q_lora_rank, latent=self.latent, heads=self.heads, nope=self.nope, rotary=self.rotary,
        )  # fmt: skip
        self.absorber = self._fused("mla_absorb", ("kv_b_proj",), heads=self.heads, latent=self.latent)
        self.epilog = self._fused("mla_epilog", ("kv_b_proj",), heads=self.heads, latent=self.latent)

    def _fused(
        self, op: str, parts: tuple[str, ...], weights: Mapping[str, str] | None = None, /, **sizes: int
    ) -> Fused:
        return Fused(op, () if self.form == "expanded" else parts, (Linear, RMSNorm), weights, **sizes)

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks that the cache can rotate latents; all other sizes that the model section accepts are supported."""
        assert isinstance(config, MlaConfig)
        if config.latent_cache == "int8" and model.kv_lora_rank.bit_count() != 1:
            accepted = "must be a power of two: attention.latent_cache=int8 rotates latents"
            raise ConfigError("model.kv_lora_rank", model.kv_lora_rank, accepted)

    def ops_bound(self, binding: Binding) -> None:
        """Selects one form for deterministic runs, because the two round differently."""
        self.deterministic = binding.deterministic
        self.absorbed = self.form == "absorbed" or (self.form == "auto" and binding.deterministic)

    def forward(
        self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache | None = None, *, rope: Rope
    ) -> AttentionOutput:
        """Attends; see the contract."""
        if cache is not None and self.whole_serves(batch):
            (group,) = batch.plan.groups()
            cache_RC, slot_T, pages = cache.in_place("latent", batch, group)
            if cache_RC.dtype == x_TD.dtype:
                place = cache_RC, slot_T, group.cu_query, group.cu_key, pages
                return AttentionOutput(self.run_whole(x_TD, rope, place))
        if self.few(x_TD, batch):
            return self.decode(x_TD, batch, cache, rope)
        q_THK = self.queries(self.query_latent(x_TD), rope)
        entries = Entries.store(batch, cache, latent=self.stored(self.entries(x_TD, rope), cache))
        outs = []
        for group in batch.plan.groups():
            outs.append(self.dense(group.take(q_THK), entries, group))
        return AttentionOutput(self.o_proj(join(batch, outs).flatten(1)))

    def write_cache(self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache, *, rope: Rope) -> None:
        """Writes entries; see `WritesCache`."""
        entry_TC = self.project(x_TD, rope)[2] if self.few(x_TD, batch) else self.entries(x_TD, rope)
        cache.write(batch, latent=self.stored(entry_TC, cache))

    def few(self, x_TD: Tensor, batch: SequenceBatch) -> bool:
        """Returns whether a step only decodes, with few enough tokens for the fused ops to be faster."""
        return batch.plan.only_decodes and self._serves(len(x_TD))

    def branch(self, batch: SequenceBatch) -> Hashable:
        """See the contract."""
        if self.latent_cache is not None:
            return None
        if self.whole_serves(batch):
            return "whole"
        return "dense" if self._serves(batch.num_tokens) else None

    def _serves(self, tokens: int) -> bool:
        projects = self.projection.serves(tokens) or (self.prolog.serves(tokens) and self.absorber.serves(tokens))
        return projects and self.epilog.serves(tokens)

    def whole_serves(self, batch: SequenceBatch) -> bool:
        """Returns whether one op of the chip computes the layer in a step that only decodes, with a cache."""
        return batch.plan.only_decodes and self.latent_cache is None and self.whole.serves(batch.num_tokens)

    def run_whole(self, x_TD: Tensor, rope: Rope, place: tuple[Tensor, Tensor, Tensor, Tensor, Pages]) -> Tensor:
        """Returns the layer's output [T, D]; the op writes the new entries into the cache's rows at their slots."""
        out_TD: Tensor = self.whole(
            x_TD, self.q_a_proj.weight, self.q_a_layernorm.weight, self.q_b_proj.weight,
            self.kv_a_proj_with_mqa.weight, self.kv_a_layernorm.weight, self.kv_b_proj.weight, self.o_proj.weight,
            *rope, *place, self.q_a_layernorm.eps, self.heads, self.scale,
        )  # fmt: skip
        return out_TD

    def decode(self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache | None, rope: Rope) -> AttentionOutput:
        """`forward` of few tokens with a cache."""
        _, q_THC, entry_TC = self.project(x_TD, rope)
        (group,) = batch.plan.groups()
        entries = Entries.store(batch, cache, latent=self.stored(entry_TC, cache))
        kv_SC, pages = self.paged_latents(entries, group, x_TD.dtype)
        out_THC = self.mla_decode(q_THC, kv_SC, group.cu_query, group.cu_key, self.latent, self.scale, pages)
        return AttentionOutput(self.put_out(out_THC))

    def project(self, x_TD: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the query latent [T, Q], absorbed queries [T, H, C + R] and entries [T, C + R] of few tokens."""
        if self.projection.serves(len(x_TD)):
            projected: tuple[Tensor, Tensor, Tensor] = self.projection(
                x_TD, self.q_a_proj.weight, self.q_a_layernorm.weight, self.q_b_proj.weight,
                self.kv_a_proj_with_mqa.weight, self.kv_a_layernorm.weight, self.kv_b_proj.weight, *rope,
                self.q_a_layernorm.eps, self.heads,
            )  # fmt: skip
            return projected
        q_TQ, entry_TC = self.prolog(
            x_TD, self.q_a_proj.weight, self.q_a_layernorm.weight, self.kv_a_proj_with_mqa.weight,
            self.kv_a_layernorm.weight, *rope, self.q_a_layernorm.eps,
        )  # fmt: skip
        return q_TQ, self.absorber(self.q_b_proj(q_TQ), self.kv_b_proj.weight, *rope, self.heads), entry_TC

    def put_out(self, out_THC: Tensor) -> Tensor:
        """Returns the layer's output [T, D] for attended latents of few tokens."""
        out_TD: Tensor = self.o_proj(self.epilog(out_THC, self.kv_b_proj.weight, self.value))
        return out_TD

    def query_latent(self, x_TD: Tensor) -> Tensor:
        """Returns the normalised query latent [T, Q]."""
        q_TQ: Tensor = self.q_a_layernorm(self.q_a_proj(x_TD))
        return q_TQ

    def queries(self, q_TQ: Tensor, rope: Rope) -> Tensor:
        """Returns queries [T, H, N + R], nope part first, rope part rotated."""
        q_THK = self.q_b_proj(q_TQ).unflatten(-1, (self.heads, -1))
        return torch.cat((q_THK[..., : self.nope], self.rope(q_THK[..., self.nope :], *rope)), dim=-1)

    def entries(self, x_TD: Tensor, rope: Rope) -> Tensor:
        """Returns the cache entries of tokens [T, C + R]: the latent, followed by the rotated rope part.

        One tensor, because the absorbed form reads both parts together; two would be copied in every step.
        """
        latent_TC, rope_TR = self.kv_a_proj_with_mqa(x_TD).split((self.latent, self.rotary), dim=-1)
        return torch.cat((self.kv_a_layernorm(latent_TC), self.rope(rope_TR[:, None], *rope)[:, 0]), dim=-1)

    def dense(self, q_THK: Tensor, entries: Entries, group: Group) -> Tensor:
        """Attends to every visible key in the form that suits the group; returns [T, H, V]."""
        if self.absorbed or (self.form == "auto" and group is entries.batch.plan.decode):
            kv_SC, pages = self.paged_latents(entries, group, q_THK.dtype)
            latents_THC = self.mla_decode(
                self.absorb(q_THK), kv_SC, group.cu_query, group.cu_key, self.latent, self.scale, pages
            )
            return self.up_project(latents_THC)
        k_SHK, v_SHV = self.expanded(entries, group, q_THK.dtype)
        return self.attention_varlen(q_THK, k_SHK, v_SHV, group.cu_query, group.cu_key, self.scale)

    def expanded(self, entries: Entries, group: Group, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns `expand` of the entries visible to a group; those that several segments see are expanded once."""
        if group.key_runs is None:
            return self.expand(self.latents(entries, group, dtype))
        k_THK, v_THV = self.expand(self.widened(entries.new_T["latent"], dtype))
        return group.keys(k_THK), group.keys(v_THV)

    def stored(self, entry_TC: Tensor, cache: LayerCache | None) -> Tensor:
        """Returns new entries as the cache stores them; a prompt reads its own entries with the same rounding."""
        if cache is None or self.latent_cache is None:
            return entry_TC
        return latent_records.to_entries(entry_TC, self.latent, self.hadamard, self.to_records)

    def latents(self, entries: Entries, group: Group, dtype: torch.dtype) -> Tensor:
        """Returns the entries [S, C + R] visible to a group."""
        return self.widened(entries.read("latent", group), dtype)

    def paged_latents(self, entries: Entries, group: Group, dtype: torch.dtype) -> tuple[Tensor, Pages | None]:
        """Returns the same, or the cache's rows and their pages if they are stored unquantised."""
        if entries.cache is None or self.latent_cache is None:
            return entries.paged("latent", group)
        return self.latents(entries, group, dtype), None

    def widened(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns entries [S, C + R] from rows of the cache."""
        if rows.dtype != torch.int8:
            return rows
        return latent_records.from_entries(rows, self.latent, self.hadamard, dtype)

    def expand(self, kv_SC: Tensor) -> tuple[Tensor, Tensor]:
        """Returns every head's keys [S, H, N + R] and values [S, H, V] of the entries."""
        latent_SC, rope_SR = kv_SC.split((self.latent, self.rotary), dim=-1)
        kv_SHX = self.kv_b_proj(latent_SC).unflatten(-1, (self.heads, -1))
        k_SHN, v_SHV = kv_SHX.split((self.nope, self.value), dim=-1)
        return torch.cat((k_SHN, rope_SR[:, None].expand(-1, self.heads, -1)), dim=-1), v_SHV

    def absorb(self, q_THK: Tensor) -> Tensor:
        """Returns queries [T, H, C + R] with the key up-projection applied; they multiply cached entries directly."""
        up_HNC = self._up_projections(q_THK.dtype)[:, : self.nope]
        q_THC = self.head_linear(q_THK[..., : self.nope], up_HNC.mT)
        return torch.cat((q_THC, q_THK[..., self.nope :]), dim=-1)

    def up_project(self, out_THC: Tensor) -> Tensor:
        """Applies the value up-projection to attended latents; returns [T, H, V]."""
        return self.head_linear(out_THC, self._up_projections(out_THC.dtype)[:, self.nope :])

    def _up_projections(self, dtype: torch.dtype) -> Tensor:
        return self.kv_b_proj.full_weight(dtype).view(self.heads, -1, self.latent)

    def cache_spec(self) -> CacheSpec:
        """Returns the latent and the rotated part, in one entry."""
        if self.latent_cache is not None:
            return (CacheEntry("latent", (latent_records.width(self.latent, self.rotary),), self.latent_cache),)
        return (CacheEntry("latent", (self.latent + self.rotary,)),)

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns ``2 H (nope + rope + value)`` per key, three times: forward, and backward to both factors."""
        return 6 * self.heads * (self.nope + self.rotary + self.value) * keys_T

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels the two per-head up-projections."""
        return {
            "q_b_proj.weight": ParameterRole("head_matrix", self.heads, (self.nope + self.rotary,), self.rotary),
            "kv_b_proj.weight": ParameterRole("head_matrix", self.heads, (self.nope, self.value)),
        }
