"""Errors of the engine."""

from __future__ import annotations

from arcforge_core.errors import ArcforgeError


class QueueFullError(ArcforgeError):
    """Too many sequences wait."""


class ClosedError(ArcforgeError):
    """The engine or server accepts no more requests."""


class RemoteError(ArcforgeError):
    """An external server failed, or its answer cannot be read. The request may have been executed."""


class TurnedAwayError(RemoteError):
    """An external server is not there, or does not take the request now: it has not begun with it."""


class RemoteTimeoutError(RemoteError):
    """An external server took longer than ``engine.timeout_seconds``, or another limit that the text names."""


class IntegrityError(RuntimeError):
    """The cache's accounting is inconsistent: a fault of the engine."""
