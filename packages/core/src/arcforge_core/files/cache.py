"""Directories for files that can be regenerated."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str, chosen: str | Path | None = None) -> Path:
    """Returns the cache directory of one kind of files in `chosen`, else ``$ARCFORGE_CACHE``, else
    ``~/.cache/arcforge``.

    Args:
        kind: e.g. ``data``.
        chosen: the user's choice, e.g. from an option.
    """
    return Path(chosen or os.environ.get("ARCFORGE_CACHE") or "~/.cache/arcforge").expanduser() / kind
