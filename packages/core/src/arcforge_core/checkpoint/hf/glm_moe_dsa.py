"""``glm_moe_dsa``: GLM-5 and its successors, DSA with or without IndexShare (spec 1.7, 1.9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from arcforge_core.checkpoint.hf.architecture import COMMON, GQA_SIZES, INDEX_SIZES, MOE
from arcforge_core.checkpoint.hf.deepseek_v3 import DeepseekV3
from arcforge_core.checkpoint.hf.glm4_moe_lite import mlp_layer_types
from arcforge_core.checkpoint.hf.links import RotatedRows
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import ConfigError

LETTERS = {"F": "full", "S": "shared"}


class GlmMoeDsa(DeepseekV3):
    """GLM-5."""

    model_type, class_name, variant = "glm_moe_dsa", "GlmMoeDsaForCausalLM", "dsa"
    sizes = (*DeepseekV3.sizes, *INDEX_SIZES)
    defaults: ClassVar[Mapping[str, Any]] = {**COMMON, **MOE, "rms_norm_eps": 1e-5}
    fixed: ClassVar[Mapping[str, Any]] = {
        **DeepseekV3.fixed,
        "mlp_bias": False,
        "rope_interleave": True,
        "indexer_rope_interleave": True,
    }
    unused = GQA_SIZES

    def derive(self, config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        """Returns the indexers' pattern; empty for a plain one."""
        super().derive(config, model)
        types = indexer_types(config, model["num_hidden_layers"])
        return {"indexer_types": types if "shared" in types else []}

    def describe(self, model: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
        """Adds the indexers' pattern."""
        if not getattr(attention, "index_relu", True):
            raise ConfigError("attention.index_relu", False, f"must be true for architecture {self.model_type}")
        types = getattr(attention, "indexer_types", []) or ["full"] * model.num_hidden_layers
        return {**super().describe(model, attention), **mlp_layer_types(model), "indexer_types": types}

    def rotated(self, config: Mapping[str, Any], model: ModelConfig) -> dict[str, RotatedRows]:
        """Returns {}: RoPE is always interleaved."""
        return {}


def indexer_types(config: Mapping[str, Any], layers: int) -> list[str]:
    """Returns ``full`` or ``shared`` for every layer, from whichever of the release's three fields is present."""
    pattern = config.get("indexer_types") or config.get("index_topk_pattern")
    if pattern is not None:
        return [LETTERS.get(kind, kind) for kind in pattern]
    frequency, offset = max(config.get("index_topk_freq", 1), 1), config.get("index_skip_topk_offset", 2)
    return ["full" if max(layer + 1 - offset, 0) % frequency == 0 else "shared" for layer in range(layers)]
