"""Builds a model from configuration, after checks that cost nothing."""

from __future__ import annotations

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.registry import registry


def check_model(config: ModelConfig, attention: AttentionConfig) -> None:
    """Raises `ConfigError` when the variant cannot be built with these sizes; makes no weights."""
    registry().get("attention", attention.name).load().check(attention, config)


def build_model(config: ModelConfig, attention: AttentionConfig, ops: Ops | None = None) -> CausalLM:
    """Checks the configuration, then builds the model.

    Inside ``with meta_device():`` (`arcforge_core.model.meta`) it makes shapes without values.

    Raises:
        ConfigError: impossible sizes, with the field named.
    """
    check_model(config, attention)
    return CausalLM(config, attention, ops)
