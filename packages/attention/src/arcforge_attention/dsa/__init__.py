"""DeepSeek sparse attention (spec 1.4): MLA over the keys that a lightning indexer selects for each query.

A group whose segments all have at most `model.index_topk` keys takes the dense path of `MLA`, bit for bit.

Shapes: T new tokens, S visible keys, D hidden.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_attention.configs import DsaConfig
from arcforge_attention.dsa.attend import attend
from arcforge_attention.dsa.indexer import Indexer
from arcforge_attention.dsa.select import needs_selection, select
from arcforge_attention.mla import MLA, visible
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheEntry, LayerCache
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Binder

__all__ = ["DSA"]


class DSA(MLA):
    """MLA with a lightning indexer.

    The indexer reads detached inputs and its selection has no gradient, so that the language-model loss leaves its
    parameters alone.
    """

    def __init__(self, config: DsaConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__(config, model, layer_index)
        self.topk, self.use_relu = model.index_topk, config.index_relu
        self.indexer = Indexer(model)
        self.indexer_topk, self.sparse_mla = reference.indexer_topk, reference.sparse_mla

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks that the rotated part fits into an index head."""
        if model.qk_rope_head_dim > model.index_head_dim:
            accepted = f"the indexer rotates as many: must be at most index_head_dim={model.index_head_dim}"
            raise ConfigError("model.qk_rope_head_dim", model.qk_rope_head_dim, accepted)

    def bind_ops(self, bind: Binder) -> None:
        """Resolves the ops."""
        super().bind_ops(bind)
        self.indexer_topk = bind(
            "indexer_topk", heads=self.indexer.heads, head_dim=self.indexer.head_dim, topk=self.topk
        )
        self.sparse_mla = bind(
            "sparse_mla",
            heads=self.heads, key_dim=self.latent + self.rotary, latent_dim=self.latent, topk=self.topk,
        )  # fmt: skip

    def forward(
        self,
        x_TD: Tensor,
        batch: SequenceBatch,
        cache: LayerCache | None = None,
        *,
        rope: tuple[Tensor, Tensor],
    ) -> AttentionOutput:
        """Attends; see the contract."""
        q_TQ = self.query_latent(x_TD)
        q_THK = self.queries(q_TQ, rope)
        latent_TC, rope_TR = self.entries(x_TD, rope)
        index_key_TI = self.indexer.keys(x_TD.detach(), rope)
        if cache is not None:
            cache.write(batch, latent=latent_TC, rope=rope_TR, index_key=index_key_TI)
        out_THV: Tensor | None = None
        for group in batch.plan.groups():
            q = group.take(q_THK)
            latent_SC = visible("latent", latent_TC, batch, group, cache)
            rope_SR = visible("rope", rope_TR, batch, group, cache)
            if needs_selection(group, self.topk):
                index_key_SI = visible("index_key", index_key_TI, batch, group, cache)
                indices_TK = select(self, x_TD.detach(), q_TQ.detach(), index_key_SI, group, rope)
                attended = attend(self, q, latent_SC, rope_SR, indices_TK, group)
            else:
                attended = self.dense(q, latent_SC, rope_SR, batch, group)
            out_THV = group.put(out_THV, attended, batch.num_tokens)
        return self.output(out_THV)

    def cache_spec(self) -> tuple[CacheEntry, ...]:
        """Returns MLA's entries and the index key."""
        return *super().cache_spec(), CacheEntry("index_key", (self.indexer.head_dim,))
