"""Packages that a registry does not know, by the messages of pip and apt."""

from __future__ import annotations

import re

UNKNOWN = re.compile(
    r"Unable to locate package (\S+)|Package '?([\w.+-]+)'? has no installation candidate|"
    r"No matching distribution found for ([\w.-]+)|satisfies the requirement ([\w.-]+)"
)


def unknown_packages(message: str) -> list[str]:
    """Returns the names of packages that a message says do not exist; none if it says something else."""
    return list(dict.fromkeys(name for found in UNKNOWN.findall(message) for name in found if name))
