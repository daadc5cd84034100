"""Errors of the engine."""

from __future__ import annotations

from arcforge_core.errors import ArcforgeError


class QueueFullError(ArcforgeError):
    """Too many sequences wait."""


class ClosedError(ArcforgeError):
    """The engine or server accepts no more requests."""


class RemoteError(ArcforgeError):
    """An external server failed, or its answer cannot be read."""


class IntegrityError(RuntimeError):
    """The cache's accounting is inconsistent: a fault of the engine."""
