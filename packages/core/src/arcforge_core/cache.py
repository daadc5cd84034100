"""Where files are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str, chosen: str | Path | None = None) -> Path:
    """Returns the folder of one kind of files below `chosen`, else ``$ARCFORGE_CACHE``, else ``~/.cache/arcforge``.

    Args:
        kind: e.g. ``data``.
        chosen: a user's own choice, as of an option.
    """
    return Path(chosen or os.environ.get("ARCFORGE_CACHE") or "~/.cache/arcforge").expanduser() / kind
