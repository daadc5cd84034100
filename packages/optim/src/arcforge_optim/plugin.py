"""Registers the components of arcforge-optim. Imports nothing heavy."""

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
    return ["pkg://arcforge_optim.conf"]


@hookimpl
def arcforge_register_components(registry: Registrar) -> None:
    """Registers the components."""
    registry.add(
        "optimizer", "adamw", "arcforge_optim.adamw:fused_adamw",
        schema="arcforge_optim.configs:AdamWConfig", summary="Fused AdamW, decay on matrices only",
    )  # fmt: skip
    registry.add(
        "optimizer", "muon", "arcforge_optim.muon:Muon",
        schema="arcforge_optim.configs:MuonConfig", summary="Muon on whole matrices, AdamW on the rest",
    )  # fmt: skip
    registry.add(
        "optimizer", "muon_split", "arcforge_optim.muon_split:MuonSplit",
        schema="arcforge_optim.configs:MuonSplitConfig", summary="Muon with attention up-projections cut by head",
    )  # fmt: skip
    registry.add(
        "schedule", "cosine", "arcforge_optim.schedules:cosine",
        schema="arcforge_optim.configs:CosineConfig", summary="Linear warm-up, then half a cosine",
    )  # fmt: skip
    registry.add(
        "schedule", "wsd", "arcforge_optim.schedules:wsd",
        schema="arcforge_optim.configs:WsdConfig", summary="Warm-up, stable, decay over the last part",
    )  # fmt: skip
