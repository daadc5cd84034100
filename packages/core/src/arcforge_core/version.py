"""The version of all six packages, and the folder of this one."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).parent
"""Where core's own files are."""
