"""The paged engine."""

from arcforge_core.moved import forward

__getattr__ = forward(__name__, "facade")
