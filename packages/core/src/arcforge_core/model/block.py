"""One decoder layer: pre-norm attention, pre-norm feed-forward (spec 1.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import LayerCache
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.moe import DenseMLP, MoE
from arcforge_core.model.norm import RMSNorm
from arcforge_core.registry import registry


@dataclass(frozen=True)
class BlockOutput:
    """A layer's result.

    Attributes:
        x_TD: hidden states after the layer.
        aux_losses: scalars by name; ``balance`` from a mixture layer, but not of a step behind a cache.
        figures: scalars of the attention by name, to be logged.
        load_E: tokens per expert; None in a dense layer and behind a cache.
        handed_on: what the attention hands to that of the next layer.
    """

    x_TD: Tensor
    aux_losses: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)
    load_E: Tensor | None = None
    handed_on: dict[str, Any] = field(default_factory=dict)


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
        **handed: Any,
    ) -> BlockOutput:
        """Runs the layer on ragged tokens; `handed` is what the layer before handed on."""
        attended = self.self_attn(self.input_layernorm(x_TD), batch, cache, rope=rope, **handed)
        x_TD = x_TD + attended.out_TD
        normed_TD = self.post_attention_layernorm(x_TD)
        if isinstance(self.mlp, DenseMLP):
            return BlockOutput(
                x_TD + self.mlp(normed_TD), attended.aux_losses, attended.figures, handed_on=attended.handed_on
            )
        out_TD, balance, load_E = self.mlp(normed_TD, batch if cache is None else None)  # generation needs no balance
        aux_losses = attended.aux_losses if balance is None else {**attended.aux_losses, "balance": balance}
        return BlockOutput(x_TD + out_TD, aux_losses, attended.figures, load_E, attended.handed_on)
