"""Connections of the server: idle ones, and those that do not read, are closed for others.

A protocol for uvicorn. By itself uvicorn waits for ever for a first request, and for a client that does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from arcforge_serving.configs import ServeConfig

MOST_HEADERS = 16 * 1024
"""Bytes of a request's headers; h11 refuses more only when they do not arrive in one piece."""
SPARE = 128
"""File descriptors that are not connections."""


def connection_options(config: ServeConfig) -> dict[str, Any]:
    """Returns the options of ``uvicorn.Config`` about connections."""

    class Bounded(BoundedProtocol):
        most = min(config.max_connections, descriptors() - SPARE)
        header_seconds, read_seconds = config.header_seconds, config.read_seconds

    Bounded.idle = {}
    return {"http": Bounded, "ws": "none", "timeout_keep_alive": config.keep_alive_seconds}


def descriptors() -> int:
    """Returns how many files this process may open, after having asked for as many as it may have."""
    try:
        import resource
    except ImportError:  # there is no such limit on Windows
        return 2**31
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**31 if hard == resource.RLIM_INFINITY else hard


class StrictConnection(h11.Connection):
    """Refuses requests whose length a proxy in front may have read differently, and closes (RFC 9112, section 6.1).

    h11 itself refuses lengths that differ or are no numbers, and transfer codings other than one ``chunked``.
    """

    def next_event(self) -> Any:
        """Returns the next event.

        Raises:
            h11.RemoteProtocolError: it breaks the protocol.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            if sum(len(name) + len(value) for name, value in event.headers) > MOST_HEADERS:
                raise h11.RemoteProtocolError(f"more than {MOST_HEADERS} bytes of headers")
            names = [name for name, _ in event.headers]
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or before HTTP/1.1")
        return event


class BoundedProtocol(H11Protocol):
    """One connection.

    Attributes:
        most: simultaneous connections.
        header_seconds: from the connection, or the first byte of a later request, to the end of the headers.
        read_seconds: how long a client may leave what was sent to it unread.
        idle: the connections without a request, the longest idle first.
    """

    most: int
    header_seconds: float
    read_seconds: float
    idle: dict[BoundedProtocol, None]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = StrictConnection(h11.SERVER, MOST_HEADERS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Makes room, if need be."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        if len(self.connections) > self.most:
            next(iter(self.idle), self).transport.abort()
        self.idle[self] = None
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Starts the clock with the first byte of a request, stops it when the headers are there."""
        self._await_request()
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Goes idle, or on with the next request."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The send buffer is full: the client has `read_seconds` to continue reading."""
        super().pause_writing()
        self._stall = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_request(self) -> None:
        if self._deadline is None and not self._busy:
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _look(self) -> None:
        if self._busy:
            self.idle.pop(self, None)
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif not self.transport.is_closing():
            self.idle.setdefault(self)
