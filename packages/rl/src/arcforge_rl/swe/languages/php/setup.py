"""Set-up of PHP repositories: Debian's packages, PHPUnit's settings, and names that tests share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from arcforge_rl.swe.instance import read_text

PACKAGE = re.compile(r"\bphp-[a-z0-9.+-]+")
BOOTSTRAP = re.compile(r"""<phpunit\b[^>]*\bbootstrap\s*=\s*["']([^"']+)["']""", re.DOTALL)
SETTINGS = ("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml")
MISSING = re.compile(r"Call to undefined function (mb|ctype|iconv|bcmath|gmp|simplexml|curl|intl)_")


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
    control = read_text(tree / "debian/control") or ""
    own = set(re.findall(r"^(?:Package|Source):\s*(\S+)", control, re.MULTILINE))
    built = re.search(r"^Build-Depends(?:-Indep)?:(.*?)^(?=\S)", control, re.MULTILINE | re.DOTALL)
    return sorted(set(PACKAGE.findall(built[1] if built else "")) - own)


def missed(texts: Mapping[str, str]) -> list[str]:
    """Returns the packages of extensions that failures miss."""
    return sorted(
        {f"php-{name.replace('mb', 'mbstring')}" for text in texts.values() for name in MISSING.findall(text)}
    )
