"""Evidence of chips on a machine, found there or read from a recording."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class Evidence:
    """The evidence that was found, or that a recording holds.

    Attributes:
        distributions: name -> version of the installed packages that say something, torch among them.
        paths: device nodes and folders of toolkits that exist.
        tools: the command line of each driver's tool that is installed -> its output, empty if it failed.
    """

    distributions: Mapping[str, str]
    paths: Collection[str]
    tools: Mapping[str, str]

    def matching(self, patterns: Collection[str]) -> list[str]:
        """Returns the paths that match any of the patterns, sorted."""
        return sorted(path for path in self.paths if any(fnmatch(path, pattern) for pattern in patterns))
