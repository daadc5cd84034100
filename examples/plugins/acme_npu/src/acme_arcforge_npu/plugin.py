"""Registers the Acme NPU. Imports nothing heavy: every command loads this module."""

from __future__ import annotations

from arcforge_core.plugins.hookspecs import hookimpl
from arcforge_core.plugins.registry import Registrar


@hookimpl
def arcforge_plugin_api() -> int:
    """Returns the plugin API number this package was written for."""
    return 2


@hookimpl
def arcforge_config_sources() -> list[str]:
    """Returns where this package's YAML presets are."""
    return ["pkg://acme_arcforge_npu.conf"]


@hookimpl
def arcforge_register_components(registry: Registrar) -> None:
    """Registers the backend under ``hardware=acme_npu``."""
    registry.add(
        "hardware",
        "acme_npu",
        "acme_arcforge_npu.backend:AcmeNpu",
        schema="acme_arcforge_npu.configs:AcmeNpuConfig",
        summary="Acme NPU (example plugin; simulated on the CPU)",
    )
