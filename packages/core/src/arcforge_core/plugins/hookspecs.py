"""The hooks of a plugin. They register and do nothing else: no imports of heavy modules, no I/O.

A plugin is a module named by an entry point of the group ``arcforge.plugins``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from arcforge_core.plugins.registry import Registrar

PROJECT = "arcforge"
PLUGIN_API = 2
"""The current plugin API number. Plugins of the previous number are accepted with a warning."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def arcforge_plugin_api() -> int:  # type: ignore[empty-body]
    """Returns the plugin API number that the plugin was written for. Required."""


@hookspec
def arcforge_register_components(registry: Registrar) -> None:
    """Registers components by name, with ``registry.add(kind, name, "pkg.module:Attr", ...)``, and jobs.

    Called once per process, when any command starts. Targets are import strings and are imported on
    first use, so that `--help` and Tab completion stay fast.
    """


@hookspec
def arcforge_config_sources() -> list[str]:  # type: ignore[empty-body]
    """Returns Hydra search-path entries that hold YAML presets, e.g. ``["pkg://acme_arcforge.conf"]``."""
