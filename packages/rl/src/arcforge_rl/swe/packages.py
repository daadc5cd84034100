"""Names of packages that a model may choose: those of a registry, and nothing that an installer reads as more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MOST, LONGEST = 100, 120
"""Packages of a set-up, and characters of one."""
ARCHIVE = re.compile(r"\.(whl|egg|zip|deb|rpm|tgz|tbz2?|txz|tlz|tar(\.\w+)?)(?=$|[\[<>=!~@])", re.IGNORECASE)
"""The end of a name, or of a version, that an installer would take as a file."""
PIP = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
VERSION = r"(?:~=|==|!=|<=|>=|<|>)\d[a-z0-9.]*(?:\.\*)?"


@dataclass(frozen=True)
class PackageKind:
    """Packages of one kind of registry.

    Attributes:
        words: which are accepted.
        pattern: of a whole one.
    """

    words: str
    pattern: re.Pattern[str]


KINDS: Mapping[str, PackageKind] = {
    "wheels": PackageKind(
        "a requirement of pip: NAME or NAME[EXTRA], with versions such as ==1.2 or >=1.2,<2",
        re.compile(rf"{PIP}(?:\[{PIP}(?:,{PIP})*\])?(?:{VERSION}(?:,{VERSION})*)?", re.ASCII),
    ),
    "npm": PackageKind(
        "a package of npm: NAME or @SCOPE/NAME, with a range such as @^1.2.0, @~1.2, @1.x or @*",
        re.compile(
            r"(?:@[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*"
            r"(?:@(?:\*|(?:\^|~|>=|<=|<|>)?\d+(?:\.(?:\d+|x)){0,2}(?:-[A-Za-z0-9.-]+)?))?",
            re.ASCII,
        ),
    ),
    "debian": PackageKind(
        "the name of a Debian package, without a version",
        re.compile(r"[a-z0-9][a-z0-9.+-]*[a-z0-9+]", re.ASCII),
    ),
}
"""Source of a recipe -> its packages."""


def flaw_in(package: str, source: str) -> str:
    """Returns why a text is no package of a source; an empty text if it is one."""
    kind = KINDS[source]
    if len(package) > LONGEST or not kind.pattern.fullmatch(package) or ARCHIVE.search(package):
        return f"{package[:LONGEST]!r} is not {kind.words}"
    return ""


def name_of(package: str) -> str:
    """Returns the name in a package, in lower case, with ``-`` for ``_`` and ``.``."""
    found = re.match(r"@?[^@\[<>=!~]+", package)
    return re.sub(r"[-_.]+", "-", found[0] if found else package).lower()
