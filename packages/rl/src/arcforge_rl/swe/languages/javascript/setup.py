"""Packages of npm that a repository needs: those that it declares, those that its tests load, and its test runner."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LOADED = re.compile(r"""(?:\bfrom\s+|\brequire\(\s*|\bimport\(?\s*)['"]((?:@[\w.-]+/)?[\w][\w.-]*)(?:/[^'"]*)?['"]""")
"""A bare module that a file loads; the group is its package."""
MISSING = re.compile(r"Cannot find (?:module|package) '((?:@[\w.-]+/)?[\w][\w.-]*)")
BUILT_IN = (
    "assert", "buffer", "child_process", "crypto", "dns", "events", "fs", "http", "http2", "https", "module", "net",
    "os", "path", "perf_hooks", "process", "punycode", "querystring", "readline", "stream", "string_decoder", "test",
    "timers", "tls", "tty", "url", "util", "v8", "vm", "worker_threads", "zlib",
)  # fmt: skip
GLOBALS = re.compile(r"^\s*(describe|suite|it)\(", re.MULTILINE)
"""Calls of a runner's globals."""


def runner_of(text: str, packages: Iterable[str] = ()) -> str:
    """Returns the runner of a test file: ``tape``, ``node``, ``vitest`` or ``mocha``; empty for a file without tests.

    Args:
        text: of the file.
        packages: those of the set-up; vitest among them defines the globals that mocha defines otherwise.
    """
    if re.search(r"""(?:from\s+|require\(\s*)['"]node:test['"]""", text):
        return "node"
    loaded = LOADED.findall(text)
    for name in ("tape", "vitest"):
        if name in loaded:
            return name
    if not GLOBALS.search(text):
        return ""
    return "vitest" if any(package.partition("@")[0] == "vitest" for package in packages) else "mocha"


def declared(tree: Path, tests: Iterable[str], further: Iterable[str] = ()) -> list[str]:
    """Returns packages with their ranges, and the repository's own name with a minus: no copy of it is installed.

    Args:
        tree: the repository.
        tests: its test files.
        further: packages that the language needs.
    """
    try:
        project: Mapping[str, Any] = json.loads((tree / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        project = {}
    ranges = {**(project.get("devDependencies") or {}), **(project.get("dependencies") or {})}
    texts = [(tree / path).read_text(encoding="utf-8", errors="replace") for path in tests]
    wanted = set(project.get("dependencies") or {}) | {name for text in texts for name in LOADED.findall(text)}
    wanted |= {runner for text in texts if (runner := runner_of(text, ranges)) in ("tape", "mocha", "vitest")}
    own = str(project.get("name") or "")
    found = [f"{name}@{ranges.get(name, '*')}" for name in sorted((wanted | {*further}) - {own} - set(BUILT_IN))]
    return [*found, *([f"-{own}"] if own and found else [])]


def missed(texts: Mapping[str, str]) -> list[str]:
    """Returns the packages that failures miss."""
    names = {name for text in texts.values() for name in MISSING.findall(text)}
    return sorted(f"{name}@*" for name in names - set(BUILT_IN))
