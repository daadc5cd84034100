"""The hooks of a package that registers its components from a table, as all of ours do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from arcforge_core.plugins.hookspecs import PLUGIN_API, hookimpl
from arcforge_core.plugins.registry import Registrar

Row = tuple[str, str, str]


def hooks(
    package: str, components: Mapping[str, Mapping[str, Row]], jobs: Mapping[str, Row] | None = None
) -> tuple[Callable[[], int], Callable[[], list[str]], Callable[[Any], None]]:
    """Returns the three hooks of `arcforge_core.plugins.hookspecs`, to be assigned to their names in a plugin module.

    The package has its YAML presets in ``PACKAGE.conf``. `arcforge_core.plugins.wheels` reads the table ``COMPONENTS``
    of our plugin modules to name the wheel of a missing component.

    Args:
        package: its import name; the tables' import strings are relative to it.
        components: kind -> name -> target, schema and summary.
        jobs: name -> function, schema and script; an empty script is ``arcforge NAME``.
    """

    @hookimpl
    def arcforge_plugin_api() -> int:
        return PLUGIN_API

    @hookimpl
    def arcforge_config_sources() -> list[str]:
        return [f"pkg://{package}.conf"]

    @hookimpl
    def arcforge_register_components(registry: Registrar) -> None:
        for kind, rows in components.items():
            for name, (target, schema, summary) in rows.items():
                registry.add(kind, name, f"{package}.{target}", schema=f"{package}.{schema}", summary=summary)
        for name, (target, schema, script) in (jobs or {}).items():
            registry.add_job(name, f"{package}.{target}", schema=f"{package}.{schema}", script=script)

    return arcforge_plugin_api, arcforge_config_sources, arcforge_register_components
