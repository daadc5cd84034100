"""arcforge core: contracts, plugins, configuration, models, data and training.

Importing this package stays cheap; torch is imported when a name below that needs it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arcforge_core import script  # noqa: F401  (first: it hears Ctrl-C while the others are imported)
from arcforge_core.moved import install
from arcforge_core.plugins.loader import registry
from arcforge_core.version import __version__

if TYPE_CHECKING:
    from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained

__all__ = ["__version__", "load_pretrained", "registry", "save_pretrained"]


install()


def __getattr__(name: str) -> Any:
    if name in ("load_pretrained", "save_pretrained"):
        from arcforge_core.checkpoint import pretrained

        return getattr(pretrained, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
