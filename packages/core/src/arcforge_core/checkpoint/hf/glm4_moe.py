"""``glm4_moe``: GLM-4.5, 4.6 and 4.7, GQA with partial half-split RoPE and mixtures of experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from arcforge_core.checkpoint.hf.architecture import (
    COMMON,
    FIXED,
    FIXED_MOE,
    INDEX_SIZES,
    MOE,
    MOE_SIZES,
    SIZES,
    Architecture,
    dense_layers,
)
from arcforge_core.checkpoint.hf.links import RotatedRows
from arcforge_core.checkpoint.hf.llama import MLA_ONLY, head_sizes, rotated_heads
from arcforge_core.checkpoint.hf.rope import partial_rotary_factor
from arcforge_core.config.schema import AttentionConfig, ModelConfig


class Glm4Moe(Architecture):
    """GLM-4.5."""

    model_type, class_name, variant = "glm4_moe", "Glm4MoeForCausalLM", "gqa"
    sizes = (*SIZES, *MOE_SIZES)
    defaults: ClassVar[Mapping[str, Any]] = {**COMMON, **MOE, "rms_norm_eps": 1e-5, "routed_scaling_factor": 1.0}
    fixed: ClassVar[Mapping[str, Any]] = {**FIXED, **FIXED_MOE}
    unused = (*MLA_ONLY, *INDEX_SIZES, "latent_norm_eps")

    def derive(self, config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        """Adds head sizes and dense layers; returns norms and biases."""
        model |= head_sizes(config, model, partial_rotary_factor(config, 0.5))
        model["first_k_dense_replace"] = dense_layers(config, model["num_hidden_layers"], 1)
        return {"qk_norm": config.get("use_qk_norm", False), "bias": config.get("attention_bias", False)}

    def describe(self, model: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
        """Returns head sizes, dense layers, norms and biases."""
        partial = model.qk_rope_head_dim / model.head_dim
        if int(model.head_dim * partial) < model.qk_rope_head_dim:  # the product was rounded below the integer
            partial = math.nextafter(partial, 1.0)
        return {
            "num_key_value_heads": model.num_key_value_heads,
            "head_dim": model.head_dim,
            "partial_rotary_factor": partial,
            "first_k_dense_replace": model.first_k_dense_replace,
            "use_qk_norm": getattr(attention, "qk_norm", False),
            "attention_bias": getattr(attention, "bias", False),
            "num_nextn_predict_layers": min(model.mtp.depths, 1),
        }

    def rotated(self, config: Mapping[str, Any], model: ModelConfig) -> dict[str, RotatedRows]:
        """Returns queries, keys and their norms."""
        return rotated_heads(model)
