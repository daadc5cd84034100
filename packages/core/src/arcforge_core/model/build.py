"""Builds a model from configuration, after checks that cost nothing."""

from __future__ import annotations

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.registry import registry


def build_model(config: ModelConfig, attention: AttentionConfig, ops: Ops | None = None) -> CausalLM:
    """Checks that the variant can be built with these sizes, then builds it.

    Use ``with torch.device("meta")`` for models that do not fit in memory.

    Raises:
        ConfigError: impossible sizes, with the field named.
    """
    registry().get("attention", attention.name).load().check(attention, config)
    return CausalLM(config, attention, ops)
