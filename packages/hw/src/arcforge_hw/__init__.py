"""arcforge hw."""

from arcforge_core import __version__

__all__ = ["__version__"]
