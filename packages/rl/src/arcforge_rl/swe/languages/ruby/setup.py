"""Packages of Debian that a Ruby repository needs, and the framework of each of its test files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from arcforge_rl.swe.debian import build_depends
from arcforge_rl.swe.instance import read_text

HELPERS = tuple(
    f"{folder}/{name}.rb" for folder in ("test", "spec") for name in ("test_helper", "spec_helper", "helper")
)
"""Files that say which framework a repository uses."""
OURS = ("minitest", "rspec", "test-unit", "rake", "bundler", "simplecov")
"""Gems that the layer has, or that runs do without."""
GEM = re.compile(r"""^\s*(?:\w+\.add_(?:runtime_|development_)?dependency|gem)[\s(]+['"]([\w.-]+)['"]""", re.MULTILINE)
MISSING = re.compile(r"cannot load such file -- ([\w-]+)")


def framework_of(path: str, text: str, helpers: Iterable[str] = ()) -> str:
    """Returns the framework of a test file: ``minitest``, ``unit`` or ``rspec``; empty for a file without tests.

    Args:
        path, text: the file.
        helpers: texts of the repository's helpers, which load the framework for it.
    """
    said = "\n".join([text, *helpers])
    if re.search(r"^\s*(?:RSpec\.)?(?:describe|context|shared_examples\w*)\b", text, re.MULTILINE):
        return "rspec" if path.endswith("_spec.rb") and "minitest" not in said.lower() else "minitest"
    if not re.search(r"^\s*class\s+\S+\s*<|\bdef\s+test_", text, re.MULTILINE):
        return ""
    return "unit" if re.search(r"test/unit|Test::Unit", said) else "minitest"


def declared(tree: Path) -> list[str]:
    """Returns Debian's packages: those that ``debian/control`` builds with, else those of declared gems."""
    if built := build_depends(tree):
        ours = {package_of(name) for name in OURS}
        return sorted(name for name in built - ours if name.startswith("ruby-"))
    texts = [read_text(path) or "" for path in [*tree.glob("*.gemspec"), *tree.glob("Gemfile")]]
    own = {path.stem for path in tree.glob("*.gemspec")}
    gems = {gem for text in texts for gem in GEM.findall(text)} - own - {*OURS}
    return sorted(package_of(gem) for gem in gems if not gem.startswith(("rubocop", "rspec", "minitest", "simplecov")))


def package_of(gem: str) -> str:
    """Returns the name of a gem's package."""
    return f"ruby-{gem.lower().replace('_', '-')}"


def missed(texts: Mapping[str, str]) -> list[str]:
    """Returns the packages that failures miss."""
    return sorted({package_of(name) for text in texts.values() for name in MISSING.findall(text)})
