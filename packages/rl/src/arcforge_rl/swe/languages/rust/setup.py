"""Debian packages of the crates that a Rust repository declares."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LACKS = re.compile(r"no matching package (?:named|found).*?`([\w-]+)`", re.DOTALL)


def package_of(crate: str) -> str:
    """Returns the Debian package of a crate."""
    return f"librust-{crate.replace('_', '-').lower()}-dev"


def declared(tree: Path) -> list[str]:
    """Returns the packages of the crates that the manifest at the top needs for its code and its tests."""
    try:
        manifest = tomllib.loads((tree / "Cargo.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    found: set[str] = set()
    for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
        for name, given in (manifest.get(kind) or {}).items():
            row: Mapping[str, Any] = given if isinstance(given, dict) else {}
            if not row.get("path"):
                found.add(package_of(str(row.get("package") or name)))
    return sorted(found)


def missed(texts: Mapping[str, str]) -> list[str]:
    """Returns the packages of the crates that cargo does not find."""
    return sorted({package_of(name) for text in texts.values() for name in LACKS.findall(text)})
