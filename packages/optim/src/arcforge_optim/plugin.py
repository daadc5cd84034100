"""Registers the components of arcforge-optim. Imports nothing heavy."""

from __future__ import annotations

from arcforge_core.plugins.table import hooks

COMPONENTS = {
    "optimizer": {
        "adamw": ("adamw:fused_adamw", "configs:AdamWConfig", "Fused AdamW, decay on matrices only"),
        "muon": ("muon:Muon", "configs:MuonConfig", "Muon on whole matrices, AdamW on the rest"),
        "muon_split": ("muon_split:MuonSplit", "configs:MuonSplitConfig",
            "Muon with attention up-projections split by head"),
    },
    "schedule": {
        "cosine": ("schedules:cosine", "configs:CosineConfig", "Linear warm-up, then half a cosine"),
        "wsd": ("schedules:wsd", "configs:WsdConfig", "Warm-up, stable, decay over the last part"),
    },
}  # fmt: skip
"""Kind -> name -> target, schema and summary; import strings are relative to the package."""

arcforge_plugin_api, arcforge_config_sources, arcforge_register_components = hooks("arcforge_optim", COMPONENTS)
