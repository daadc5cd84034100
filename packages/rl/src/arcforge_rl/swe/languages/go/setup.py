"""Debian packages that a Go repository needs, and its import path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

MODULE = re.compile(r'^module\s+"?([\w./~-]+)"?', re.MULTILINE)
CONTROL = re.compile(r"^XS-Go-Import-Path:\s*([\w./~-]+)", re.MULTILINE)
IMPORTED = re.compile(r'^\s*(?:import\s+)?(?:[\w.]+\s+)?"([\w./~-]+)"\s*$', re.MULTILINE)
"""A line that imports a package."""
LACKS = re.compile(r'cannot find package "([\w./~-]+)"')
HOSTS = {"golang.org": "golang", "google.golang.org": "google", "gopkg.in": "gopkg", "go.uber.org": "uber"}
"""Hosts whose name is not theirs without the last part, as in ``github.com``."""


def import_path(tree: Path) -> str:
    """Returns the import path that a repository declares; a made-up one if it declares none."""
    for name, pattern in (("go.mod", MODULE), ("debian/control", CONTROL)):
        try:
            found = pattern.search((tree / name).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if found:
            return found[1]
    return "local/testbed"


def package_of(path: str) -> str:
    """Returns the Debian package of an import path; empty for one of the standard library."""
    host, *parts = path.split("/")
    if "." not in host or not parts:
        return ""
    if host == "golang.org":
        parts = ["x", *parts[1:2]]
    elif host == "github.com" or (host == "gopkg.in" and ".v" not in parts[0]):
        parts = parts[:2]
    else:
        parts = parts[:1]
    owner = HOSTS.get(host) or host.rsplit(".", 1)[0].replace(".", "-")
    return f"golang-{'-'.join([owner, *parts])}-dev".lower().replace("_", "-")


def declared(tree: Path, files: Iterable[str]) -> list[str]:
    """Returns the packages of what Go files import, without the repository's own."""
    own = import_path(tree)
    texts = [(tree / path).read_text(encoding="utf-8", errors="replace") for path in files]
    imported = {path for text in texts for path in IMPORTED.findall(text)}
    others = {path for path in imported if path != own and not path.startswith(f"{own}/")}
    return sorted({package for path in others if (package := package_of(path))})


def missed(texts: Mapping[str, str]) -> list[str]:
    """Returns the packages of the imports that builds miss."""
    paths = {path for text in texts.values() for path in LACKS.findall(text)}
    return sorted({package for path in paths if (package := package_of(path))})
