"""The check of a folder of third-party files against the table in it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROW = re.compile(r"^\| `([^`]+)` \| .* `([\w.-]+\.LICENSE)` \| `([0-9a-f]{64})` \|$", re.M)


def check_vendored(folder: Path) -> None:
    """Compares a folder ``vendor`` with its ``README.md``: files, licences and checksums."""
    rows = ROW.findall((folder / "README.md").read_text())
    files = {file.name for file in folder.iterdir()}
    assert files == {"README.md", *(name for name, _, _ in rows), *(licence for _, licence, _ in rows)}
    for name, _, checksum in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum, name
