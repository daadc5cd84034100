"""Registers the components of arcforge-attention. Imports nothing heavy."""

from __future__ import annotations

from arcforge_core.plugins.table import hooks

COMPONENTS = {
    "attention": {
        "gqa": ("gqa:GQA", "configs:GqaConfig", "Grouped-query attention with partial RoPE"),
        "swa": ("swa:SWA", "configs:SwaConfig", "Sliding windows alternating with full attention"),
        "swa_pattern": ("swa:SWA", "configs:SwaPatternConfig", "Sliding windows in layers selected by a search"),
        "gdn": ("gdn:Gdn", "configs:GdnConfig", "Gated DeltaNet alternating with full attention"),
        "simple_gdn": ("simple_gdn:SimpleGdn", "configs:SimpleGdnConfig",
            "Linear attention on the projections of gqa, alternating with full attention"),
        "mla": ("mla:MLA", "configs:MlaConfig", "Multi-head latent attention: a small shared cache"),
        "dsa": ("dsa:DSA", "configs:DsaConfig", "MLA over keys selected by a lightning indexer"),
    },
}  # fmt: skip
"""Kind -> name -> target, schema and summary; import strings are relative to the package."""

JOBS = {
    "ablation": ("ablation.job:run", "configs:AblationConfig", ""),
    "swa-search": ("swa_command:search", "configs:SwaSearchConfig", "arcforge-swa-search"),
}
"""Name -> function, schema and script."""

arcforge_plugin_api, arcforge_config_sources, arcforge_register_components = hooks(
    "arcforge_attention", COMPONENTS, JOBS
)
