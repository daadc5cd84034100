"""Set-up of PHP repositories: Debian's packages, PHPUnit's settings, and names that tests share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from arcforge_rl.swe.debian import build_depends

BOOTSTRAP = re.compile(r"""<phpunit\b[^>]*\bbootstrap\s*=\s*["']([^"']+)["']""", re.DOTALL)
SETTINGS = ("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml")
MISSING = re.compile(r"Call to undefined function (\w+)\(")
EXTENSIONS = {
    "mb_": "php-mbstring",
    "bc": "php-bcmath",
    "gmp_": "php-gmp",
    "curl_": "php-curl",
    "simplexml_": "php-xml",
}
"""Beginning of a function -> package of its extension."""


def bootstraps(settings: Mapping[str, str]) -> list[str]:
    """Returns the file that PHPUnit loads first, relative to the repository; Composer's is not there.

    Args:
        settings: texts of `SETTINGS` by their names.
    """
    for name in SETTINGS:
        if found := BOOTSTRAP.search(settings.get(name, "")):
            path = found[1].removeprefix("./")
            return [] if path.startswith(("/", "vendor/", "../")) else [path]
    return []


def declared(tree: Path) -> list[str]:
    """Returns Debian's packages that ``debian/control`` builds with."""
    return sorted(name for name in build_depends(tree) if name.startswith("php-"))


def missed(texts: Mapping[str, str]) -> list[str]:
    """Returns the packages of extensions that failures miss."""
    names = {name for text in texts.values() for name in MISSING.findall(text)}
    return sorted({package for name in names for begin, package in EXTENSIONS.items() if name.startswith(begin)})
