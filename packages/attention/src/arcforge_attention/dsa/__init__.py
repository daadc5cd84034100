"""DeepSeek sparse attention (spec 1.4): MLA over the keys that a lightning indexer selects for each query.

A group whose segments all have at most `model.index_topk` keys takes the dense path of `MLA`, bit for bit. With
IndexShare (spec 1.9) a shared layer has no indexer and attends to the keys that the layer before hands on.

Shapes: T new tokens, S visible keys, D hidden, K selected keys.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from arcforge_attention.configs import DsaConfig
from arcforge_attention.dsa.attend import attend, attend_few
from arcforge_attention.dsa.indexer import Indexer
from arcforge_attention.dsa.loss import indexer_loss, recall
from arcforge_attention.dsa.select import IndexInputs, Selection, index_inputs, needs_selection, select
from arcforge_attention.entries import Entries, join
from arcforge_attention.mla import MLA
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheEntry, CacheSpec, LayerCache, Rope
from arcforge_core.contracts.batch import Group, SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Binder
from arcforge_core.ops.quant import SCALE_BYTES

__all__ = ["DSA"]


class Lesson(NamedTuple):
    """What the indexer is told about a group: the sum of its tokens' losses, and the recall unless not measured."""

    loss: Tensor
    recall: Tensor | None


def summary(lessons: list[Lesson], batch: SequenceBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the layer's losses and figures by name, means over the batch."""
    recalls = [lesson.recall for lesson in lessons if lesson.recall is not None]
    losses = {"indexer": torch.stack([lesson.loss for lesson in lessons]).sum() / batch.num_tokens} if lessons else {}
    return losses, {"indexer_recall": torch.stack(recalls).mean()} if recalls else {}


class DSA(MLA):
    """MLA with a lightning indexer, or with the selection of the layer before.

    The indexer reads detached inputs and its selection has no gradient, so that the language-model loss leaves its
    parameters alone; it learns from a loss of its own (`dsa.loss`) that reaches nothing else.
    """

    starts_from: ClassVar[tuple[str, ...]] = ("mla",)

    def __init__(self, config: DsaConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__(config, model, layer_index)
        self.topk, self.use_relu = model.index_topk, config.index_relu
        self.indexer = None if config.is_shared(layer_index) else Indexer(model)
        self.hands_on = config.is_shared(layer_index + 1)
        self.stage, self.loss_weight = config.indexer_training, config.indexer_loss_weight
        self.recall_queries = config.recall_queries
        self.index_cache = {"auto": None, "bf16": torch.bfloat16, "int8": torch.int8}[config.index_cache]
        self.indexer_topk, self.indexer_kl = reference.indexer_topk, reference.indexer_kl
        self.sparse_mla, self.selected_attention = reference.sparse_mla, reference.selected_attention

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks top-k, that the rotated part fits into an index head and that every layer has its indexer type."""
        super().check(config, model)
        assert isinstance(config, DsaConfig)
        if model.index_topk > model.max_position_embeddings:
            limit = model.max_position_embeddings
            accepted = f"nothing would ever be left out: must be at most max_position_embeddings={limit}"
            raise ConfigError("model.index_topk", model.index_topk, accepted)
        if model.qk_rope_head_dim > model.index_head_dim:
            accepted = f"the indexer rotates as many: must be at most index_head_dim={model.index_head_dim}"
            raise ConfigError("model.qk_rope_head_dim", model.qk_rope_head_dim, accepted)
        if config.index_cache == "int8" and model.index_head_dim.bit_count() != 1:
            accepted = "attention.index_cache=int8 rotates index keys: must be a power of two"
            raise ConfigError("model.index_head_dim", model.index_head_dim, accepted)
        if config.indexer_types and len(config.indexer_types) != model.num_hidden_layers:
            accepted = f"must be empty or have one entry per layer: model.num_hidden_layers={model.num_hidden_layers}"
            raise ConfigError("attention.indexer_types", config.indexer_types, accepted)

    def bind_ops(self, bind: Binder) -> None:
        """Resolves the ops."""
        super().bind_ops(bind)
        if self.indexer is not None:
            self.indexer_topk = bind(
                "indexer_topk", heads=self.indexer.heads, head_dim=self.indexer.head_dim, topk=self.topk
            )
            self.indexer_kl = bind(
                "indexer_kl",
                heads=self.heads, key_dim=self.latent + self.rotary, index_heads=self.indexer.heads,
                index_dim=self.indexer.head_dim, topk=self.topk,
            )  # fmt: skip
        self.sparse_mla = bind(
            "sparse_mla",
            heads=self.heads, key_dim=self.latent + self.rotary, latent_dim=self.latent, topk=self.topk,
        )  # fmt: skip
        self.selected_attention = bind(
            "selected_attention",
            heads=self.heads, kv_heads=self.heads, key_dim=self.nope + self.rotary, value_dim=self.value,
            topk=self.topk,
        )  # fmt: skip

    def forward(
        self,
        x_TD: Tensor,
        batch: SequenceBatch,
        cache: LayerCache | None = None,
        *,
        rope: Rope,
        selection: Selection | None = None,
    ) -> AttentionOutput:
        """Attends; see the contract. A shared layer needs the `selection` of the layer before."""
        if self.indexer is None and selection is None:
            raise ValueError("a layer without an indexer needs the selection of the layer before")
        if self.few(x_TD, batch):
            return self.decode(x_TD, batch, cache, rope, None if selection is None else selection[0])
        q_TQ = self.query_latent(x_TD)
        q_THK = self.queries(q_TQ, rope)
        index_key = {}
        if self.indexer is not None:
            index_key["index_key"] = self.as_cached(self.indexer.keys(x_TD.detach(), rope), cache)
        entries = Entries.store(batch, cache, latent=self.stored(self.entries(x_TD, rope), cache), **index_key)
        learns = self.indexer is not None and self.stage != "off" and torch.is_grad_enabled()
        outs, chosen, lessons = [], [], []
        for number, group in enumerate(batch.plan.groups()):
            q = group.take(q_THK)
            selected_TK = None if selection is None else selection[number]
            if self.indexer is not None and (learns or self.selects(group)):
                index = index_inputs(self, x_TD.detach(), q_TQ.detach(), entries, group, rope)
                selected_TK = select(self, index, group) if self.selects(group) else None
                if learns:
                    lessons.append(self.learn(q, entries.read("latent", group), index, selected_TK, group))
            if selected_TK is None:
                outs.append(self.dense(q, entries, group))
            else:
                outs.append(attend(self, q, entries, selected_TK, group))
            chosen.append(selected_TK)
        # handed on only where it is used: activation checkpointing keeps what it gives to a layer
        handed_on = {"selection": tuple(chosen)} if self.hands_on else {}
        return AttentionOutput(self.o_proj(join(batch, outs).flatten(1)), *summary(lessons, batch), handed_on)

    def remember(self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache, *, rope: Rope) -> None:
        """Adds the index keys to what MLA writes; see `Remembers`."""
        if self.indexer is None:
            super().remember(x_TD, batch, cache, rope=rope)
            return
        if self.few(x_TD, batch):
            q_TQ, _, entry_TC = self.project(x_TD, rope)
            key_TD = self.indexer.project(x_TD, q_TQ, rope)[1]
        else:
            entry_TC, key_TD = self.entries(x_TD, rope), self.indexer.keys(x_TD, rope)
        cache.write(batch, latent=self.stored(entry_TC, cache), index_key=self.as_cached(key_TD, cache))

    def branch(self, batch: SequenceBatch) -> Hashable:
        """Adds to MLA's whether keys are selected."""
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
        """`forward` of few tokens behind a cache."""
        (group,) = batch.plan.groups()
        q_TQ, q_THC, entry_TC = self.project(x_TD, rope)
        latent_T = self.stored(entry_TC, cache)
        if self.indexer is None:
            entries = Entries.store(batch, cache, latent=latent_T)
        else:
            q_TID, key_TD, w_TI = self.indexer.project(x_TD, q_TQ, rope)
            entries = Entries.store(batch, cache, latent=latent_T, index_key=self.as_cached(key_TD, cache))
            if self.selects(group):
                index = IndexInputs(self.turned(q_TID, cache), *entries.paged("index_key", group), w_TI)
                selected_TK = select(self, index, group)
        if selected_TK is None:
            kv_SC, pages = self.paged_latents(entries, group, x_TD.dtype)
            out_THC = self.mla_decode(q_THC, kv_SC, group.cu_query, group.cu_key, self.latent, self.scale, pages)
        else:
            out_THC = attend_few(self, q_THC, entries, selected_TK, group)
        return AttentionOutput(self.put_out(out_THC), handed_on={"selection": (selected_TK,)} if self.hands_on else {})

    def as_cached(self, index_key_TD: Tensor, cache: LayerCache | None) -> Tensor:
        """Returns new index keys, rounded like those in the cache."""
        if cache is None or self.index_cache is None:
            return index_key_TD
        if self.index_cache == torch.int8:
            return self.to_records(self.turned(index_key_TD, cache))
        return index_key_TD.to(self.index_cache)

    def turned(self, x: Tensor, cache: LayerCache | None) -> Tensor:
        """Returns index queries or keys rotated where keys are cached so; products of both are the same."""
        return self.hadamard(x) if cache is not None and self.index_cache == torch.int8 else x

    def learn(
        self,
        q_THK: Tensor,
        kv_SC: Tensor,
        index: IndexInputs,
        selected_TK: Tensor | None,
        group: Group,
    ) -> Lesson:
        """Compares the indexer's scores of a group with the attention weights."""
        index = index.gathered(group)
        with torch.no_grad():
            q_THC = self.absorb(q_THK)
        loss = self.loss_weight * indexer_loss(self, q_THC, kv_SC, index, selected_TK, group)
        seen = recall(self, q_THC, kv_SC, index, group, self.recall_queries) if self.recall_queries else None
        return Lesson(loss, seen)

    def selects(self, group: Group) -> bool:
        """Says whether the group attends to selected keys: there are more than top-k, and it is not warm-up."""
        return self.stage != "dense" and needs_selection(group, self.topk)

    def cache_spec(self) -> CacheSpec:
        """Returns MLA's entries, and the index key where there is an indexer."""
        if self.indexer is None:
            return super().cache_spec()
        width = self.indexer.head_dim + (SCALE_BYTES if self.index_cache == torch.int8 else 0)
        return *super().cache_spec(), CacheEntry("index_key", (width,), self.index_cache)

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns MLA's for the selected keys, and the indexer's, which has no backward, where more are visible."""
        attended_T = super().training_flops(keys_T.clamp(max=self.topk))
        if self.indexer is None:
            return attended_T
        return attended_T + torch.where(keys_T > self.topk, self.indexer.flops(keys_T), 0.0)
