"""Document sources."""

from arcforge_core.moved import forward

__getattr__ = forward(__name__, "text")
