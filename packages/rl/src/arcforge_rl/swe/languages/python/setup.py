"""Requirements of Python repositories: those that they declare, and those of modules that failures miss."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXTRAS = ("test", "tests", "testing", "dev")
NAMES = {"yaml": "pyyaml", "dateutil": "python-dateutil", "attr": "attrs", "PIL": "pillow", "bs4": "beautifulsoup4"}
"""Modules whose distribution has another name."""
MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w]+)")
UNKNOWN_OPTIONS = re.compile(r"error: unrecognized arguments: (.+)")
PLUGINS = {
    "cov": "pytest-cov", "no-cov": "pytest-cov", "timeout": "pytest-timeout", "asyncio": "pytest-asyncio",
    "benchmark": "pytest-benchmark", "doctest-plus": "pytest-doctestplus", "reruns": "pytest-rerunfailures",
    "hypothesis": "hypothesis", "django": "pytest-django", "mock": "pytest-mock", "snapshot": "syrupy",
}  # fmt: skip
"""Beginnings of options of pytest, and the distributions whose plugins know them."""
PRESENT = (
    "pytest", "pip", "setuptools", "wheel", "tox", "coverage", "build", "twine", "flit-core", "hatchling",
    *(f"pytest-{name}" for name in ("enabler", "mypy", "ruff", "black", "flake8", "checkdocs", "perf")),
)  # fmt: skip
"""Distributions that are there already, or that no test needs: plugins that check a repository's style are some."""


def declared(tree: Path) -> list[str]:
    """Returns the requirements that a repository declares for itself and its tests, by rule."""
    found: list[str] = []
    for info in sorted(tree.glob("PKG-INFO")):
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    try:
        project: Mapping[str, Any] = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        project = {}
    own = project.get("project") or {}
    found += own.get("dependencies") or []
    for name in EXTRAS:
        found += (own.get("optional-dependencies") or {}).get(name) or []
        group = (project.get("dependency-groups") or {}).get(name) or []
        found += [one for one in group if isinstance(one, str)]
    for path in sorted({*tree.glob("*requirements*test*.txt"), *tree.glob("*test*requirements*.txt")}):
        found += path.read_text(encoding="utf-8", errors="replace").splitlines()
    return sorted({name for line in found if (name := _name(line)) and name.lower() not in PRESENT})


def _name(line: str) -> str:
    """Returns the distribution that a requirement names; empty if it is of another extra, or no requirement."""
    extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
    if (extra and extra[1] not in EXTRAS) or re.search(
        r"(sys_platform|platform_system)\s*==\s*['\"](win|Win|darwin)", line
    ):
        return ""
    found = re.match(r"\s*([A-Za-z0-9][\w.-]*)", line)
    return found[1] if found and "://" not in line else ""


def missed(texts: Mapping[str, str]) -> list[str]:
    """Returns the distributions of the modules that failures miss, and of plugins whose options pytest did not know."""
    modules = {name for text in texts.values() for name in MISSING.findall(text)}
    options = {one for text in texts.values() for line in UNKNOWN_OPTIONS.findall(text) for one in line.split()}
    plugins = {plugin for one in options for start, plugin in PLUGINS.items() if re.match(rf"--{start}\b", one)}
    return sorted({NAMES.get(name, name) for name in modules} | plugins)
