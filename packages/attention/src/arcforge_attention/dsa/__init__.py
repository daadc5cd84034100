"""DeepSeek sparse attention (spec 1.4): MLA over the keys that a lightning indexer selects for each query.

A group whose segments all have at most `model.index_topk` keys takes the dense path of `MLA`, bit for bit. With
IndexShare (spec 1.9) a shared layer has no indexer and attends to the keys that the previous layer selected.

Shapes: T new tokens, S visible keys, D hidden, Q query latent, H heads, C latent plus rope (in values latent), V value
size, I index heads, K selected keys; in ``q_THK`` the key size.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from arcforge_attention import latent_records
from arcforge_attention.configs import DsaConfig
from arcforge_attention.dsa.cost import expanded_is_cheaper
from arcforge_attention.dsa.indexer import Indexer
from arcforge_attention.dsa.loss import dense_loss, recall
from arcforge_attention.dsa.select import IndexInputs, Selection, needs_selection
from arcforge_attention.entries import Entries, join
from arcforge_attention.mla import MLA
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheEntry, CacheSpec, LayerCache, Rope
from arcforge_core.contracts.batch import Group, SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.ops import op, reference
from arcforge_core.ops.quant import SCALE_BYTES

__all__ = ["DSA"]


class IndexerLoss(NamedTuple):
    """The indexer's loss summed over a group's tokens, and its recall if measured."""

    loss: Tensor
    recall: Tensor | None


def summary(parts: list[IndexerLoss], batch: SequenceBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the layer's losses and figures by name, as means over the batch."""
    recalls = [part.recall for part in parts if part.recall is not None]
    losses = {"indexer": torch.stack([part.loss for part in parts]).sum() / batch.num_tokens} if parts else {}
    return losses, {"indexer_recall": torch.stack(recalls).mean()} if recalls else {}


class DSA(MLA):
    """MLA with its own lightning indexer, or with the previous layer's selection.

    The indexer reads detached inputs and its selection has no gradient, so the language-model loss does not train its
    parameters; its own loss (`dsa.loss`) trains nothing else.
    """

    starts_from: ClassVar[tuple[str, ...]] = ("mla",)
    in_one_op: ClassVar[bool] = False  # `mla_layer` writes no index keys

    def __init__(self, config: DsaConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__(config, model, layer_index)
        self.topk, self.use_relu = model.index_topk, config.index_relu
        self.indexer = None if config.is_shared(layer_index) else Indexer(model)
        self.passes_selection = config.is_shared(layer_index + 1)
        self.stage, self.loss_weight = config.indexer_training, config.indexer_loss_weight
        self.recall_queries = config.recall_queries
        self.index_cache = {"auto": None, "bf16": torch.bfloat16, "int8": torch.int8}[config.index_cache]
        entry, topk = self.latent + self.rotary, self.topk
        self.sparse_mla = op(reference.sparse_mla, heads=self.heads, key_dim=entry, latent_dim=self.latent, topk=topk)
        self.selected_attention = op(
            reference.selected_attention,
            heads=self.heads, kv_heads=self.heads, key_dim=self.nope + self.rotary, value_dim=self.value, topk=topk,
        )  # fmt: skip
        if self.indexer is not None:
            heads, width = self.indexer.heads, self.indexer.head_dim
            self.indexer_topk = op(reference.indexer_topk, heads=heads, head_dim=width, topk=topk)
            self.indexer_kl = op(
                reference.indexer_kl,
                heads=self.heads, key_dim=entry, index_heads=heads, index_dim=width, topk=topk,
            )  # fmt: skip

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks top-k, that the rotated part fits into an index head and that every layer has an indexer type."""
        super().check(config, model)
        assert isinstance(config, DsaConfig)
        if model.index_topk > model.max_position_embeddings:
            limit = model.max_position_embeddings
            accepted = f"must be at most max_position_embeddings={limit}, otherwise every key is selected"
            raise ConfigError("model.index_topk", model.index_topk, accepted)
        if model.qk_rope_head_dim > model.index_head_dim:
            accepted = f"must be at most index_head_dim={model.index_head_dim}: the indexer rotates this many values"
            raise ConfigError("model.qk_rope_head_dim", model.qk_rope_head_dim, accepted)
        if config.index_cache == "int8" and model.index_head_dim.bit_count() != 1:
            accepted = "must be a power of two: attention.index_cache=int8 rotates index keys"
            raise ConfigError("model.index_head_dim", model.index_head_dim, accepted)
        if config.indexer_types and len(config.indexer_types) != model.num_hidden_layers:
            accepted = f"must be empty or have one entry per layer: model.num_hidden_layers={model.num_hidden_layers}"
            raise ConfigError("attention.indexer_types", config.indexer_types, accepted)

    def forward(
        self,
        x_TD: Tensor,
        batch: SequenceBatch,
        cache: LayerCache | None = None,
        *,
        rope: Rope,
        selection: Selection | None = None,
    ) -> AttentionOutput:
        """Attends; see the contract. A shared layer needs the `selection` of the previous layer."""
        if self.indexer is None and selection is None:
            raise ValueError("a layer without an indexer needs the selection of the previous layer")
        if self.few(x_TD, batch):
            return self.decode(x_TD, batch, cache, rope, None if selection is None else selection[0])
        q_TQ = self.query_latent(x_TD)
        q_THK = self.queries(q_TQ, rope)
        index_key = {}
        if self.indexer is not None:
            index_key["index_key"] = self.as_cached(self.indexer.keys(x_TD.detach(), rope), cache)
        entries = Entries.store(batch, cache, latent=self.stored(self.entries(x_TD, rope), cache), **index_key)
        learns = self.indexer is not None and self.stage != "off" and torch.is_grad_enabled()
        outs, chosen, losses = [], [], []
        for number, group in enumerate(batch.plan.groups()):
            q = group.take(q_THK)
            selected_TK = None if selection is None else selection[number]
            if self.indexer is not None and (learns or self.selects(group)):
                index = self.index_inputs(x_TD.detach(), q_TQ.detach(), entries, group, rope)
                selected_TK = self.select(index, group) if self.selects(group) else None
                if learns:
                    losses.append(self.indexer_loss(q, entries.read("latent", group), index, selected_TK, group))
            if selected_TK is None:
                outs.append(self.dense(q, entries, group))
            else:
                outs.append(self.attend_selected(q, entries, selected_TK, group))
            chosen.append(selected_TK)
        # only if the next layer uses it: activation checkpointing stores the arguments of a layer
        to_next_layer = {"selection": tuple(chosen)} if self.passes_selection else {}
        return AttentionOutput(self.o_proj(join(batch, outs).flatten(1)), *summary(losses, batch), to_next_layer)

    def write_cache(self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache, *, rope: Rope) -> None:
        """Writes MLA's entries and the index keys; see `WritesCache`."""
        if self.indexer is None:
            super().write_cache(x_TD, batch, cache, rope=rope)
            return
        if self.few(x_TD, batch):
            q_TQ, _, entry_TC = self.project(x_TD, rope)
            key_TD = self.indexer.project(x_TD, q_TQ, rope)[1]
        else:
            entry_TC, key_TD = self.entries(x_TD, rope), self.indexer.keys(x_TD, rope)
        cache.write(batch, latent=self.stored(entry_TC, cache), index_key=self.as_cached(key_TD, cache))

    def branch(self, batch: SequenceBatch) -> Hashable:
        """Returns MLA's branch and whether keys are selected."""
        dense = super().branch(batch)
        return None if dense is None else (dense, *map(self.selects, batch.plan.groups()))

    def decode(
        self,
        x_TD: Tensor,
        batch: SequenceBatch,
        cache: LayerCache | None,
        rope: Rope,
        selected_TK: Tensor | None = None,
    ) -> AttentionOutput:
        """`forward` of few tokens with a cache."""
        (group,) = batch.plan.groups()
        q_TQ, q_THC, entry_TC = self.project(x_TD, rope)
        latent_T = self.stored(entry_TC, cache)
        if self.indexer is None:
            entries = Entries.store(batch, cache, latent=latent_T)
        else:
            q_TID, key_TD, w_TI = self.indexer.project(x_TD, q_TQ, rope)
            entries = Entries.store(batch, cache, latent=latent_T, index_key=self.as_cached(key_TD, cache))
            if self.selects(group):
                index = IndexInputs(self.turned(q_TID, cache), *entries.paged("index_key", group), w_TI, self.use_relu)
                selected_TK = self.select(index, group)
        if selected_TK is None:
            kv_SC, pages = self.paged_latents(entries, group, x_TD.dtype)
            out_THC = self.mla_decode(q_THC, kv_SC, group.cu_query, group.cu_key, self.latent, self.scale, pages)
        else:
            out_THC = self.attend_few(q_THC, entries, selected_TK, group)
        to_next_layer = {"selection": (selected_TK,)} if self.passes_selection else {}
        return AttentionOutput(self.put_out(out_THC), to_next_layer=to_next_layer)

    def attend_selected(self, q_THK: Tensor, entries: Entries, indices_TK: Tensor, group: Group) -> Tensor:
        """Attends to selected keys in the form with fewer operations; returns [T, H, V]."""
        if self.expands(group):
            k_SHK, v_SHV = self.expanded(entries, group, q_THK.dtype)
            return self.selected_attention(q_THK, k_SHK, v_SHV, indices_TK, group.cu_query, group.cu_key, self.scale)
        q_THC = self.absorb(q_THK)
        if group is entries.batch.plan.decode:
            return self.up_project(self.attend_few(q_THC, entries, indices_TK, group))
        kv_SC, pages = self.paged_latents(entries, group, q_THK.dtype)
        lengths = group.cu_query, group.cu_key
        return self.up_project(self.sparse_mla(q_THC, kv_SC, indices_TK, *lengths, self.latent, self.scale, pages))

    def attend_few(self, q_THC: Tensor, entries: Entries, indices_TK: Tensor, group: Group) -> Tensor:
        """Returns attended latents [T, H, C] of few tokens with a cache; dequantises only the int8 entries it reads.

        Not used in deterministic mode: how sums are split depends on the positions of the selected keys.
        """
        rows, pages = entries.paged("latent", group)
        cu_query, cu_key = group.cu_query, group.cu_key
        if rows.dtype == torch.int8:
            if self.deterministic:
                rows = entries.read("latent", group)
            else:
                rows, indices_TK, cu_query, cu_key = latent_records.gather(rows, pages, indices_TK, group)
            rows, pages = self.widened(rows, q_THC.dtype), None
        return self.sparse_mla(q_THC, rows, indices_TK, cu_query, cu_key, self.latent, self.scale, pages)

    def expands(self, group: Group) -> bool:
        """Returns whether the expanded form is configured, or has fewer operations."""
        if self.absorbed or self.form != "auto":
            return not self.absorbed
        sizes = {"latent": self.latent, "nope": self.nope, "rotary": self.rotary, "value": self.value}
        return expanded_is_cheaper(group, self.topk, **sizes)

    def index_inputs(self, x_TD: Tensor, q_TQ: Tensor, entries: Entries, group: Group, rope: Rope) -> IndexInputs:
        """Runs the indexer's projections for a group; `x_TD`, `q_TQ` and `rope` are those of the whole batch."""
        assert self.indexer is not None  # a shared layer does not select
        cos_TF, sin_TF = (group.take(table) for table in rope)
        q_TID = self.turned(self.indexer.queries(group.take(q_TQ), (cos_TF, sin_TF)), entries.cache)
        w_TI = self.indexer.weights(group.take(x_TD))
        return IndexInputs(q_TID, *entries.paged("index_key", group), w_TI, self.use_relu)

    def select(self, index: IndexInputs, group: Group) -> Tensor:
        """Returns the group's selected keys [T, K] as indices in the token's segment, ascending, padded with -1."""
        lengths = group.cu_query, group.cu_key
        return self.indexer_topk(index.q_TID, index.k_SD, index.w_TI, *lengths, self.topk, index.use_relu, index.pages)

    def as_cached(self, index_key_TD: Tensor, cache: LayerCache | None) -> Tensor:
        """Returns new index keys, rounded like those in the cache."""
        if cache is None or self.index_cache is None:
            return index_key_TD
        if self.index_cache == torch.int8:
            return self.to_records(self.turned(index_key_TD, cache))
        return index_key_TD.to(self.index_cache)

    def turned(self, x: Tensor, cache: LayerCache | None) -> Tensor:
        """Returns rotated index queries or keys if the cache stores rotated keys; their dot products do not change."""
        return self.hadamard(x) if cache is not None and self.index_cache == torch.int8 else x

    def indexer_loss(
        self, q_THK: Tensor, kv_SC: Tensor, index: IndexInputs, selected_TK: Tensor | None, group: Group
    ) -> IndexerLoss:
        """Compares the indexer's scores of a group with the attention weights, which get no gradient."""
        index, kv_SC = index.gathered(group), kv_SC.detach()
        with torch.no_grad():
            q_THC = self.absorb(q_THK)
        if selected_TK is None:
            loss = dense_loss(q_THC, kv_SC, index, group, self.scale)
        else:
            loss = self.indexer_kl(
                q_THC, kv_SC, index.q_TID, index.k_SD, index.w_TI, selected_TK, group.cu_query, group.cu_key,
                self.scale, index.use_relu,
            )  # fmt: skip
        seen = None
        if self.recall_queries:
            sizes = {"topk": self.topk, "queries": self.recall_queries}
            seen = recall(q_THC, kv_SC, index, group, scale=self.scale, **sizes)
        return IndexerLoss(self.loss_weight * loss, seen)

    def selects(self, group: Group) -> bool:
        """Returns whether the group attends to selected keys: it has more than top-k, outside warm-up."""
        return self.stage != "dense" and needs_selection(group, self.topk)

    def cache_spec(self) -> CacheSpec:
        """Returns MLA's entries, and the index key if the layer has an indexer."""
        if self.indexer is None:
            return super().cache_spec()
        width = self.indexer.head_dim + (SCALE_BYTES if self.index_cache == torch.int8 else 0)
        return *super().cache_spec(), CacheEntry("index_key", (width,), self.index_cache)

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns MLA's FLOPs for the selected keys, and the forward-only FLOPs of the indexer if it selects."""
        attended_T = super().training_flops(keys_T.clamp(max=self.topk))
        if self.indexer is None:
            return attended_T
        return attended_T + torch.where(keys_T > self.topk, self.indexer.flops(keys_T), 0.0)
