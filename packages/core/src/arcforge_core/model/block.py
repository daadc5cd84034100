"""One decoder layer: pre-norm attention, pre-norm feed-forward (spec 1.3)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import LayerCache
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.moe import DenseMLP, MoE
from arcforge_core.model.norm import RMSNorm
from arcforge_core.model.outputs import BlockOutput
from arcforge_core.plugins.loader import registry


class Block(nn.Module):
    """``h += Attn(RMSNorm(h)); h += FFN(RMSNorm(h))``."""

    def __init__(self, config: ModelConfig, attention: AttentionConfig, layer_index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = registry().get("attention", attention.name).load()(attention, config, layer_index)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        dense = layer_index < config.first_k_dense_replace
        self.mlp = DenseMLP(config.hidden_size, config.intermediate_size) if dense else MoE(config)

    def forward(
        self,
        x_TD: Tensor,
        batch: SequenceBatch,
        rope: tuple[Tensor, Tensor],
        cache: LayerCache | None = None,
        **from_layer_before: Any,
    ) -> BlockOutput:
        """Runs the layer on ragged tokens; `from_layer_before` is `BlockOutput.to_next_layer` of the previous layer."""
        attended = self.self_attn(self.input_layernorm(x_TD), batch, cache, rope=rope, **from_layer_before)
        x_TD = x_TD + attended.out_TD
        normed_TD = self.post_attention_layernorm(x_TD)
        if isinstance(self.mlp, DenseMLP):
            x_TD = x_TD + self.mlp(normed_TD)
            return BlockOutput(x_TD, attended.aux_losses, attended.figures, to_next_layer=attended.to_next_layer)
        out_TD, balance, load_E = self.mlp(normed_TD, batch if cache is None else None)  # generation needs no balance
        aux_losses = attended.aux_losses if balance is None else {**attended.aux_losses, "balance": balance}
        return BlockOutput(x_TD + out_TD, aux_losses, attended.figures, load_E, attended.to_next_layer)
