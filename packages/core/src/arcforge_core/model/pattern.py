"""``attention=pattern``: a model whose layers use different attention variants."""

from __future__ import annotations

from typing import Any

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.configs import PatternConfig
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry


class Pattern:
    """A component's target: builds the variant that the pattern names for the layer.

    Layers that pass something to the next layer, such as IndexShare's, cannot rely on a neighbour of their kind and are
    rejected when they are built.
    """

    def __new__(cls, config: PatternConfig, model: ModelConfig, layer_index: int) -> Any:
        """Returns the layer, which is not an instance of this class."""
        kind = config.kind(layer_index, model.num_hidden_layers)
        return registry().get("attention", kind.name).load()(kind, model, layer_index)

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks the pattern's length, and each variant."""
        assert isinstance(config, PatternConfig)
        layers = model.num_hidden_layers
        if not config.pattern or layers % len(config.pattern):
            accepted = (
                f"has {len(config.pattern)} letters: must have one per layer, model.num_hidden_layers={layers}, "
                "or a number that divides it"
            )
            raise ConfigError("attention.pattern", config.pattern, accepted)
        for kind in config.kinds.values():
            registry().get("attention", kind.name).load().check(kind, model)
