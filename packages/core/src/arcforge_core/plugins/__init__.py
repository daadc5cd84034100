"""The plugin system: hooks, registry, loader."""

from arcforge_core.moved import forward

__getattr__ = forward(__name__, "loader")
