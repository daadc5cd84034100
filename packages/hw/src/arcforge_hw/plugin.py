"""Registers the components of arcforge-hw. Imports nothing heavy."""

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
    return ["pkg://arcforge_hw.conf"]


@hookimpl
def arcforge_register_components(registry: Registrar) -> None:
    """Registers the components."""
    registry.add(
        "hardware", "cpu", "arcforge_hw.cpu.backend:Cpu",
        schema="arcforge_hw.configs:CpuConfig", summary="CPU with kernels of our own",
    )  # fmt: skip
    registry.add(
        "hardware", "cuda", "arcforge_hw.cuda.backend:Cuda",
        schema="arcforge_hw.configs:CudaConfig", summary="NVIDIA GPUs with kernels in Triton",
    )  # fmt: skip
