"""Builds a model from its configuration, after checks that allocate nothing."""

from __future__ import annotations

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.plugins.loader import registry


def check_model(config: ModelConfig, attention: AttentionConfig) -> None:
    """Raises `ConfigError` if the variant cannot be built with these sizes; allocates no weights."""
    registry().get("attention", attention.name).load().check(attention, config)


def build_model(config: ModelConfig, attention: AttentionConfig, ops: Ops | None = None) -> CausalLM:
    """Checks the configuration, then builds the model.

    Inside ``with meta_device():`` (`arcforge_core.model.meta`) the parameters have shapes but no values.

    Raises:
        ConfigError: impossible sizes; the error names the field.
    """
    check_model(config, attention)
    return CausalLM(config, attention, ops)
