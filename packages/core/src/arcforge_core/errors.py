"""Errors that name the field, the value and the accepted values."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of an `OSError` that the user can only answer with room."""


class ArcforgeError(Exception):
    """A user's error: one clear line, exit code 2 on the command line."""


class ConfigError(ArcforgeError, ValueError):
    """A configuration value that cannot be used.

    Args:
        field: dotted path of the field, e.g. ``model.hidden_size``.
        value: the value that was given.
        accepted: the accepted values, in words.
    """

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(f"{field}={value!r}: {accepted}")
        self.field, self.value, self.accepted = field, value, accepted

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.field, self.value, self.accepted)


class PluginError(ArcforgeError):
    """A plugin or component that cannot be loaded."""


class UnknownComponentError(ArcforgeError, KeyError):
    """A component name that no installed distribution registers."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])


class DataError(ArcforgeError, ValueError):
    """Input data that cannot be used."""


class UnavailableError(ArcforgeError):
    """A service that did not answer: one clear line, exit code 75; the same command may do its work later."""


class CheckpointError(ArcforgeError):
    """A checkpoint that is missing, damaged or does not fit."""


def listed(names: Iterable[str], most: int = 40) -> str:
    """Returns names with commas between them; a longer list is cut, and its length added."""
    names = list(names)
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, ... ({len(names)} in all)"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the closest known name, or an empty string."""
    folded = {each.casefold(): each for each in known}
    matches = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f"; did you mean {folded[matches[0]]!r}?" if matches else ""
