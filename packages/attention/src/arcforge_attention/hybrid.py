"""Variants that replace some layers of grouped-query attention with layers of another class."""

from __future__ import annotations

from typing import Any

from arcforge_attention.configs import HybridConfig
from arcforge_attention.gqa import GQA
from arcforge_core.config.schema import AttentionConfig, ModelConfig


class Hybrid:
    """A component's target: builds the layer that the pattern selects, `GQA` or `replacement`."""

    replacement: Any

    def __new__(cls, config: HybridConfig, model: ModelConfig, layer_index: int) -> Any:
        """Returns the layer, which is not an instance of this class."""
        layer = GQA if config.is_full(layer_index, model.num_hidden_layers) else cls.replacement
        return layer(config, model, layer_index)

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks the pattern, and the same fields as `GQA`, whose heads both kinds of layers have."""
        assert isinstance(config, HybridConfig)
        config.check_pattern(model.num_hidden_layers)
        GQA.check(config, model)
