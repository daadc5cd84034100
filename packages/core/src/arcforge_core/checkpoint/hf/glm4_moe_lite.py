"""``glm4_moe_lite``: GLM-4.7-Flash, MLA as in DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from arcforge_core.checkpoint.hf.architecture import COMMON, MOE
from arcforge_core.checkpoint.hf.deepseek_v3 import DeepseekV3
from arcforge_core.config.schema import AttentionConfig, ModelConfig


class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash."""

    model_type, class_name = "glm4_moe_lite", "Glm4MoeLiteForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {**COMMON, **MOE, "rms_norm_eps": 1e-5, "routed_scaling_factor": 1.8}
    first_dense = 1

    def describe(self, model: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
        """Adds the type of every feed-forward, which transformers reads."""
        return {**super().describe(model, attention), **mlp_layer_types(model)}


def mlp_layer_types(model: ModelConfig) -> dict[str, Any]:
    """Returns the field that lists the dense and sparse layers."""
    dense = model.first_k_dense_replace
    return {"mlp_layer_types": ["dense"] * dense + ["sparse"] * (model.num_hidden_layers - dense)}
