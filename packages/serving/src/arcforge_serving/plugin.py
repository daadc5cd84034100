"""Registers the components of arcforge-serving. Imports nothing heavy."""

from __future__ import annotations

from arcforge_core.plugins.table import hooks

COMPONENTS = {
    "engine": {
        "paged": ("engine.paged:PagedEngine", "configs:PagedEngineConfig",
            "Continuous batching over a paged cache with shared prefixes"),
        "arcforge": ("remote.arcforge:ArcforgeEngine", "configs:ArcforgeEngineConfig",
            "A server of arcforge-serve, one engine or several, over HTTP"),
        "vllm": ("remote.vllm:VllmEngine", "configs:VllmEngineConfig", "A server of vLLM, over HTTP"),
        "sglang": ("remote.sglang:SglangEngine", "configs:SglangEngineConfig", "A server of SGLang, over HTTP"),
    },
    "workload": {
        "random": ("bench.workloads:random_workload", "bench.configs:RandomWorkloadConfig",
            "Independent requests of random words"),
        "shared_prefix": ("bench.workloads:shared_prefix_workload", "bench.configs:SharedPrefixWorkloadConfig",
            "Requests that begin alike, in groups"),
        "agent": ("bench.workloads:agent_workload", "bench.configs:AgentWorkloadConfig",
            "Conversations that grow by replies and by results of tools"),
        "file": ("bench.workloads:file_workload", "bench.configs:FileWorkloadConfig",
            "The requests of a file of JSON lines"),
    },
}  # fmt: skip
"""Kind -> name -> target, schema and summary; import strings are relative to the package."""

JOBS = {
    "serve": ("serve:serve", "configs:ServeConfig", "arcforge-serve"),
    "bench": ("bench.measure:measure", "bench.configs:BenchConfig", "arcforge-bench"),
}
"""Name -> function, schema and script."""

arcforge_plugin_api, arcforge_config_sources, arcforge_register_components = hooks("arcforge_serving", COMPONENTS, JOBS)
