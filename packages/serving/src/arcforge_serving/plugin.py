"""Registers the components of arcforge-serving. Imports nothing heavy."""

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
    return ["pkg://arcforge_serving.conf"]


@hookimpl
def arcforge_register_components(registry: Registrar) -> None:
    """Registers the components."""
    registry.add(
        "engine", "paged", "arcforge_serving.paged:PagedEngine",
        schema="arcforge_serving.configs:PagedEngineConfig",
        summary="Continuous batching over a paged cache with shared prefixes",
    )  # fmt: skip
    for name, summary in (("vllm", "A server of vLLM, over HTTP"), ("sglang", "A server of SGLang, over HTTP")):
        registry.add(
            "engine", name, f"arcforge_serving.remote.{name}:{name.capitalize()}Engine",
            schema=f"arcforge_serving.configs:{name.capitalize()}EngineConfig", summary=summary,
        )  # fmt: skip
    for name, summary in (
        ("random", "Independent requests of random words"),
        ("shared_prefix", "Requests that begin alike, in groups"),
        ("agent", "Conversations that grow by replies and by results of tools"),
        ("file", "The requests of a file of JSON lines"),
    ):
        schema = "".join(part.capitalize() for part in name.split("_"))
        registry.add(
            "workload", name, f"arcforge_serving.bench.workloads:{name}_workload",
            schema=f"arcforge_serving.bench.configs:{schema}WorkloadConfig", summary=summary,
        )  # fmt: skip
    registry.add_command("arcforge-serve", "arcforge_serving.configs:ServeConfig")
    registry.add_command("arcforge-bench", "arcforge_serving.bench.configs:BenchConfig")
