"""The table in their folder lists exactly the third-party files, with their licences."""

import hashlib
import re
from pathlib import Path

from arcforge_core.report.page import FOLDER

VENDOR: Path = FOLDER / "vendor"


def test_every_file_is_in_the_table_with_its_checksum_and_licence():
    rows = re.findall(
        r"^\| `([^`]+)` \| .* `([\w.]+\.LICENSE)` \| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.M
    )
    files = {file.name for file in VENDOR.iterdir()}
    assert files == {"README.md", *(name for name, _, _ in rows), *(licence for _, licence, _ in rows)}
    for name, _, checksum in rows:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == checksum, name
