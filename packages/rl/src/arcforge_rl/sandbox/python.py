"""The Python interpreter inside a sandbox."""

from __future__ import annotations

import os
import sys

SYSTEM_PYTHON = "/usr/bin/python3"


def python_inside() -> tuple[str, list[str]]:
    """Returns an interpreter's path inside a sandbox, and the paths that `read_only` must show for it.

    Either the system's, or that of this process with its standard library.
    """
    if os.access(SYSTEM_PYTHON, os.X_OK):
        return SYSTEM_PYTHON, []
    return os.path.join(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"), [
        sys.base_prefix
    ]
