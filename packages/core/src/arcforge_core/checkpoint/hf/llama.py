"""``llama``: dense, GQA with half-split RoPE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from arcforge_core.checkpoint.hf.architecture import (
    COMMON,
    FIXED,
    INDEX_SIZES,
    MLA_SIZES,
    MOE,
    MOE_SIZES,
    SIZES,
    Architecture,
)
from arcforge_core.checkpoint.hf.links import RotatedRows
from arcforge_core.checkpoint.hf.rope import refuse_partial
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import ConfigError

MLA_ONLY = tuple(name for name in MLA_SIZES if name != "qk_rope_head_dim")  # GQA's number of rotated dimensions


class Llama(Architecture):
    """Llama and related models."""

    model_type, class_name, variant = "llama", "LlamaForCausalLM", "gqa"
    sizes = SIZES
    defaults: ClassVar[Mapping[str, Any]] = COMMON
    fixed: ClassVar[Mapping[str, Any]] = {**FIXED, "attention_bias": False, "mlp_bias": False}
    unused = (*MLA_ONLY, *INDEX_SIZES, *MOE_SIZES, *MOE, "latent_norm_eps")

    def derive(self, config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        """Adds the head sizes; every layer is dense."""
        refuse_partial(config)
        model["first_k_dense_replace"] = model["num_hidden_layers"]
        model |= head_sizes(config, model, partial=1.0)
        return {}

    def describe(self, model: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
        """Returns the head sizes."""
        for name in ("bias", "qk_norm"):
            if getattr(attention, name, False):
                raise ConfigError(f"attention.{name}", True, "must be false for architecture llama; use glm4_moe")
        if model.mtp.depths:
            raise ConfigError("model.mtp.depths", model.mtp.depths, "must be 0 for architecture llama; use glm4_moe")
        if model.hidden_size % model.num_attention_heads:
            accepted = f"must be a multiple of num_attention_heads={model.num_attention_heads} for architecture llama"
            raise ConfigError("model.hidden_size", model.hidden_size, accepted)
        return {"num_key_value_heads": model.num_key_value_heads, "head_dim": model.head_dim}

    def rotated(self, config: Mapping[str, Any], model: ModelConfig) -> dict[str, RotatedRows]:
        """Returns queries and keys."""
        return rotated_heads(model)


def head_sizes(config: Mapping[str, Any], model: Mapping[str, Any], partial: float) -> dict[str, Any]:
    """Returns GQA's sizes; `partial` is the share of a head that is rotated."""
    heads = model["num_attention_heads"]
    head_dim = config.get("head_dim") or model["hidden_size"] // heads
    return {
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "qk_rope_head_dim": int(head_dim * partial),
    }


def rotated_heads(model: ModelConfig) -> dict[str, RotatedRows]:
    """Returns the first rows of every query and key head, and of the norms on them."""
    rows = RotatedRows(model.head_dim, 0, model.qk_rope_head_dim)
    return {f"self_attn.{name}": rows for name in ("q_proj", "k_proj", "q_norm", "k_norm")}
