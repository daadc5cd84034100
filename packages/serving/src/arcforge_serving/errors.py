"""Errors of the engine."""

from __future__ import annotations

from arcforge_core.errors import ArcforgeError


class QueueFullError(ArcforgeError):
    """Too many sequences wait."""


class ClosedError(ArcforgeError):
    """The engine or server takes no requests any more."""


class RemoteError(ArcforgeError):
    """A server of others failed, or cannot be understood."""


class IntegrityError(RuntimeError):
    """The cache's books do not agree: a fault of ours."""
