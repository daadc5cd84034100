"""``deepseek_v3``: MLA with group-limited routing, and the base of all architectures with MLA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from arcforge_core.checkpoint.hf.architecture import (
    COMMON,
    FIXED,
    FIXED_MOE,
    GQA_SIZES,
    INDEX_SIZES,
    MLA_SIZES,
    MOE,
    MOE_SIZES,
    SIZES,
    Architecture,
    dense_layers,
)
from arcforge_core.checkpoint.hf.links import RotatedRows
from arcforge_core.checkpoint.hf.rope import refuse_partial
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import ConfigError

LATENT_NORM_EPS = 1e-6
"""eps of MLA's latent norms in transformers, whatever the config."""


class DeepseekV3(Architecture):
    """DeepSeek-V3."""

    model_type, class_name, variant = "deepseek_v3", "DeepseekV3ForCausalLM", "mla"
    sizes: ClassVar[tuple[str, ...]] = (*SIZES, *MOE_SIZES, *MLA_SIZES)
    defaults: ClassVar[Mapping[str, Any]] = {**COMMON, **MOE, "n_group": 8, "topk_group": 4}
    fixed: ClassVar[Mapping[str, Any]] = {**FIXED, **FIXED_MOE, "attention_bias": False}
    unused: ClassVar[tuple[str, ...]] = (*GQA_SIZES, *INDEX_SIZES)
    first_dense = 3

    def derive(self, config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        """Adds the dense layers and the latent norms' eps."""
        refuse_partial(config)
        heads = config.get("num_key_value_heads") or model["num_attention_heads"]
        if heads != model["num_attention_heads"]:
            accepted = f"must equal num_attention_heads={model['num_attention_heads']} with MLA"
            raise ConfigError("num_key_value_heads", heads, accepted)
        model["first_k_dense_replace"] = dense_layers(config, model["num_hidden_layers"], self.first_dense)
        model["latent_norm_eps"] = LATENT_NORM_EPS
        return {}

    def describe(self, model: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
        """Returns head counts, dense layers and the kind of RoPE."""
        return {
            "num_key_value_heads": model.num_attention_heads,
            "first_k_dense_replace": model.first_k_dense_replace,
            "rope_interleave": True,
            "num_nextn_predict_layers": min(model.mtp.depths, 1),
        }

    def rotated(self, config: Mapping[str, Any], model: ModelConfig) -> dict[str, RotatedRows]:
        """Returns the last rows of each query head and of the shared key, unless ``rope_interleave``."""
        if config.get("rope_interleave", True):
            return {}
        nope, rope, latent = model.qk_nope_head_dim, model.qk_rope_head_dim, model.kv_lora_rank
        return {
            "self_attn.q_b_proj": RotatedRows(nope + rope, nope, rope),
            "self_attn.kv_a_proj_with_mqa": RotatedRows(latent + rope, latent, rope),
        }
