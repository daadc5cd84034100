"""``page.json`` of a checkpoint, which tells the page of a server how to begin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "page.json"
BASE = {"base": True}
"""The model continues texts and has learned no conversation."""


def write_starters(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes the file, if there is anything to say."""
    if content:
        (folder / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def is_base(folder: Path) -> bool:
    """Whether a checkpoint says that it is a base model."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("base") is True
