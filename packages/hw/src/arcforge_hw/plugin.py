"""Registers the components of arcforge-hw. Imports nothing heavy."""

from __future__ import annotations

from arcforge_core.plugins.table import hooks

COMPONENTS = {
    "hardware": {
        "cpu": ("cpu.backend:Cpu", "configs:CpuConfig", "CPU with C++ and tiled kernels"),
        "cuda": ("cuda.backend:Cuda", "configs:CudaConfig", "NVIDIA GPUs with kernels in Triton"),
    },
}  # fmt: skip
"""Kind -> name -> target, schema and summary; import strings are relative to the package."""

arcforge_plugin_api, arcforge_config_sources, arcforge_register_components = hooks("arcforge_hw", COMPONENTS)
