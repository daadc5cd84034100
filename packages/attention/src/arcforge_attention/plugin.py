"""Registers the components of arcforge-attention. Imports nothing heavy."""

from __future__ import annotations

from arcforge_core.hookspecs import PLUGIN_API, hookimpl
from arcforge_core.registry import Registrar


@hookimpl
def arcforge_plugin_api() -> int:
    """Returns the API number this plugin was written for."""
    return PLUGIN_API


@hookimpl
def arcforge_config_sources() -> list[str]:
    """Returns where this package's YAML presets are."""
    return ["pkg://arcforge_attention.conf"]


@hookimpl
def arcforge_register_components(registry: Registrar) -> None:
    """Registers the components."""
    registry.add(
        "attention", "gqa", "arcforge_attention.gqa:GQA",
        schema="arcforge_attention.configs:GqaConfig", summary="Grouped-query attention with partial RoPE",
    )  # fmt: skip
    registry.add(
        "attention", "swa", "arcforge_attention.swa:SWA",
        schema="arcforge_attention.configs:SwaConfig", summary="Sliding windows in turn with full attention",
    )  # fmt: skip
    registry.add(
        "attention", "swa_pattern", "arcforge_attention.swa:SWA",
        schema="arcforge_attention.configs:SwaPatternConfig", summary="Sliding windows in the layers a search chose",
    )  # fmt: skip
    registry.add(
        "attention", "gdn", "arcforge_attention.gdn:Gdn",
        schema="arcforge_attention.configs:GdnConfig", summary="Gated DeltaNet in turn with full attention",
    )  # fmt: skip
    registry.add(
        "attention", "simple_gdn", "arcforge_attention.simple_gdn:SimpleGdn",
        schema="arcforge_attention.configs:SimpleGdnConfig",
        summary="Linear attention on the projections of gqa, in turn with full attention",
    )  # fmt: skip
    registry.add(
        "attention", "mla", "arcforge_attention.mla:MLA",
        schema="arcforge_attention.configs:MlaConfig", summary="Multi-head latent attention: a small shared cache",
    )  # fmt: skip
    registry.add(
        "attention", "dsa", "arcforge_attention.dsa:DSA",
        schema="arcforge_attention.configs:DsaConfig", summary="MLA over the keys that a lightning indexer selects",
    )  # fmt: skip
    registry.add(
        "procedure", "attention_ablation", "arcforge_attention.ablation.procedure:run",
        schema="arcforge_attention.configs:AblationConfig",
        summary="One variant at all others' budget, from a dense base",
    )  # fmt: skip
    registry.add_command("arcforge-swa-search", "arcforge_attention.configs:SwaSearchConfig")
