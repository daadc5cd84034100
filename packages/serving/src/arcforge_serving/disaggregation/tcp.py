"""Pages over TCP on this machine: token ids are sent, pages come back, one connection per prompt.

The server acknowledges a connection immediately, so that no client waits for a dead process whose port is still bound.
A message is its length, its CRC-32, and JSON; pages follow the answer, each as number, CRC-32 and record. Requests
carry the secret that all processes were started with.
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import torch

from arcforge_serving.disaggregation.contract import PageRecords, PageRequest, TransferError, page_checksum

HEAD = struct.Struct(">II")
FIELDS = ("first", "version", "page_bytes", "salt")
LONGEST = 64 * 2**20
"""Bytes of a message, without the pages that follow it."""
ACKNOWLEDGED = b"+"
SECONDS_TO_ACKNOWLEDGE = 1.0
"""Enough for a process that died to be restarted."""
Address = tuple[str, int]


class PrefillServer:
    """Answers decode roles, each connection in a thread of its own.

    Args:
        compute: returns the pages of a prompt, or raises `TransferError`; `PrefillRole.pages`.
        listener: a listening socket, which the caller closes.
        secret: that requests must carry.
        seconds: for a message to be received or sent.
    """

    def __init__(
        self,
        compute: Callable[[PageRequest], PageRecords],
        listener: socket.socket,
        secret: str,
        seconds: float = 60.0,
    ) -> None:
        self._compute, self._listener, self._secret, self._seconds = compute, listener, secret, seconds
        threading.Thread(target=self._accept, name="arcforge-prefill", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # it was closed
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, TransferError):  # the client is gone, or is not one of ours
            connection.settimeout(self._seconds)
            connection.sendall(ACKNOWLEDGED)
            message = receive(connection)
            if not hmac.compare_digest(str(message.pop("secret", "")), self._secret):
                return
            try:
                pages = self._compute(PageRequest(tuple(message["tokens"]), *(message[k] for k in FIELDS)))
            except TransferError as error:
                send(connection, {"error": str(error)})
                return
            send(connection, {"first": pages.first, "version": pages.version, "count": len(pages.records)})
            for number, record in enumerate(pages.records, pages.first):
                content = record.numpy().data
                connection.sendall(HEAD.pack(number, page_checksum(number, content)))
                connection.sendall(content)


class TcpConnector:
    """Fetches pages from one or several prefill roles, in rotation; may be used by several threads.

    Args:
        addresses: theirs.
        secret: theirs.
        seconds: for each part of an answer to arrive, the computation of the prompt included.
        ack_seconds: for the connection to be acknowledged.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        secret: str,
        seconds: float = 60.0,
        ack_seconds: float = SECONDS_TO_ACKNOWLEDGE,
    ) -> None:
        self._addresses, self._secret, self._seconds = list(addresses), secret, seconds
        self._ack_seconds = ack_seconds
        self._requests = count()
        self._open: set[socket.socket] = set()

    def fetch(self, request: PageRequest) -> PageRecords:
        """Waits for a prompt's pages.

        Raises:
            TransferError: they did not arrive intact; another try may succeed.
        """
        address = self._addresses[next(self._requests) % len(self._addresses)]
        try:
            with self._connection(address) as connection:
                fields = {name: getattr(request, name) for name in FIELDS}
                send(connection, {"secret": self._secret, "tokens": list(request.tokens), **fields})
                answer = receive(connection)
                if "error" in answer:
                    raise TransferError(answer["error"])
                if (answer["first"], answer["version"]) != (request.first, request.version):
                    raise TransferError(f"the answer belongs to another prompt: {answer}")
                records = [self._page(connection, request, index) for index in range(answer["count"])]
        except OSError as error:
            raise TransferError(f"{address[0]}:{address[1]}: {error}") from error
        return PageRecords(request.first, request.version, records)

    def close(self) -> None:
        """Ends the requests in progress."""
        for connection in list(self._open):
            with suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _connection(self, address: Address) -> Iterator[socket.socket]:
        with socket.create_connection(address, self._ack_seconds) as connection:
            exactly(connection, len(ACKNOWLEDGED))
            connection.settimeout(self._seconds)
            self._open.add(connection)
            try:
                yield connection
            finally:
                self._open.discard(connection)

    @staticmethod
    def _page(connection: socket.socket, request: PageRequest, index: int) -> torch.Tensor:
        number, crc = HEAD.unpack(exactly(connection, HEAD.size))
        record = exactly(connection, request.page_bytes)
        if number != request.first + index or page_checksum(number, memoryview(record)) != crc:
            raise TransferError(f"page {number} was changed in transit")
        return torch.frombuffer(record, dtype=torch.uint8)


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    content = json.dumps(message, separators=(",", ":")).encode()
    connection.sendall(HEAD.pack(len(content), zlib.crc32(content)) + content)


def receive(connection: socket.socket) -> dict[str, Any]:
    """Returns a message.

    Raises:
        TransferError: it was changed in transit, or the connection ended before it was complete.
        OSError: the connection broke or timed out.
    """
    length, crc = HEAD.unpack(exactly(connection, HEAD.size))
    if length > LONGEST:
        raise TransferError(f"a message of {length} bytes exceeds {LONGEST}")
    content = exactly(connection, length)
    if zlib.crc32(content) != crc:
        raise TransferError("a message was changed in transit")
    found: dict[str, Any] = json.loads(content)
    return found


def exactly(connection: socket.socket, length: int) -> bytearray:
    """Returns `length` bytes.

    Raises:
        TransferError: the connection ended before.
        OSError: see `receive`.
    """
    content = bytearray(length)
    view, received = memoryview(content), 0
    while received < length:
        got = connection.recv_into(view[received:])
        if not got:
            raise TransferError(f"the connection ended {length - received} bytes early")
        received += got
    return content
