"""Pages over TCP on this machine: a prompt's ids go there, its pages come back, one connection each.

Who asks is told at once that it was heard, so that nobody waits for a process that is dead but whose port is kept. A
message is its length, its CRC-32, and JSON; behind the answer come the pages, each with number, CRC-32 and record.
Whoever asks must know the secret, which the processes were started with.
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import torch

from arcforge_serving.disaggregation.contract import Asked, Pages, Prefill, TransferError, page_checksum

HEAD = struct.Struct(">II")
LONGEST = 64 * 2**20
"""Bytes of a message, the pages behind it not counted."""
HEARD = b"+"
HEARD_SECONDS = 1.0
"""In which a process that died may be started anew, too."""
Address = tuple[str, int]


class PrefillServer:
    """Answers decode roles, each connection in a thread of its own.

    Args:
        role: computes.
        listener: a socket that listens; closing it is the caller's.
        secret: that whoever asks must know.
        seconds: for a message to come, or to be taken.
    """

    def __init__(self, role: Prefill, listener: socket.socket, secret: str, seconds: float = 60.0) -> None:
        self._role, self._listener, self._secret, self._seconds = role, listener, secret, seconds
        threading.Thread(target=self._accept, name="arcforge-prefill", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # it was closed
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, TransferError):  # whoever asked has gone, or was never one of ours
            connection.settimeout(self._seconds)
            connection.sendall(HEARD)
            asked = receive(connection)
            if not hmac.compare_digest(str(asked.pop("secret", "")), self._secret):
                return
            try:
                pages = self._role.pages(Asked(tuple(asked["tokens"]), *(asked[k] for k in FIELDS)))
            except TransferError as error:
                send(connection, {"error": str(error)})
                return
            send(connection, {"first": pages.first, "version": pages.version, "count": len(pages.records)})
            for number, record in enumerate(pages.records, pages.first):
                content = record.numpy().data
                connection.sendall(HEAD.pack(number, page_checksum(number, content)))
                connection.sendall(content)


FIELDS = ("first", "version", "page_bytes")


class TcpConnector:
    """A `Connector` to one or several prefill roles, which take turns.

    Args:
        addresses: theirs.
        secret: theirs.
        seconds: for each part of an answer to come: the first one has to be computed.
        heard_seconds: for someone to be there.
    """

    def __init__(
        self, addresses: Sequence[Address], secret: str, seconds: float = 60.0, heard_seconds: float = HEARD_SECONDS
    ) -> None:
        self._addresses, self._secret, self._seconds = list(addresses), secret, seconds
        self._heard_seconds = heard_seconds
        self._turns = count()
        self._open: set[socket.socket] = set()

    def fetch(self, asked: Asked) -> Pages:
        """Asks one of them; see `Connector`."""
        address = self._addresses[next(self._turns) % len(self._addresses)]
        try:
            with self._connection(address) as connection:
                fields = {name: getattr(asked, name) for name in FIELDS}
                send(connection, {"secret": self._secret, "tokens": list(asked.tokens), **fields})
                answer = receive(connection)
                if "error" in answer:
                    raise TransferError(answer["error"])
                if (answer["first"], answer["version"]) != (asked.first, asked.version):
                    raise TransferError(f"the answer is another prompt's: {answer}")
                records = [self._page(connection, asked, number) for number in range(answer["count"])]
        except OSError as error:
            raise TransferError(f"{address[0]}:{address[1]}: {error}") from error
        return Pages(asked.first, asked.version, records)

    @contextmanager
    def _connection(self, address: Address) -> Iterator[socket.socket]:
        with socket.create_connection(address, self._heard_seconds) as connection:
            exactly(connection, len(HEARD))
            connection.settimeout(self._seconds)
            self._open.add(connection)
            try:
                yield connection
            finally:
                self._open.discard(connection)

    @staticmethod
    def _page(connection: socket.socket, asked: Asked, index: int) -> torch.Tensor:
        number, crc = HEAD.unpack(exactly(connection, HEAD.size))
        record = exactly(connection, asked.page_bytes)
        if number != asked.first + index or page_checksum(number, memoryview(record)) != crc:
            raise TransferError(f"page {number} is not what was sent")
        return torch.frombuffer(record, dtype=torch.uint8)

    def close(self) -> None:
        """Waits for nothing any more."""
        for connection in list(self._open):
            with suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message."""
    content = json.dumps(message, separators=(",", ":")).encode()
    connection.sendall(HEAD.pack(len(content), zlib.crc32(content)) + content)


def receive(connection: socket.socket) -> dict[str, Any]:
    """Returns a message.

    Raises:
        TransferError: it is not what was sent, or the connection ends before its end.
        OSError: the connection broke, or nothing came in time.
    """
    length, crc = HEAD.unpack(exactly(connection, HEAD.size))
    if length > LONGEST:
        raise TransferError(f"a message of {length} bytes is no message")
    content = exactly(connection, length)
    if zlib.crc32(content) != crc:
        raise TransferError("a message is not what was sent")
    found: dict[str, Any] = json.loads(content)
    return found


def exactly(connection: socket.socket, length: int) -> bytearray:
    """Returns so many bytes.

    Raises:
        TransferError: the connection ends before.
        OSError: see `receive`.
    """
    content = bytearray(length)
    view, have = memoryview(content), 0
    while have < length:
        got = connection.recv_into(view[have:])
        if not got:
            raise TransferError(f"the connection ended {length - have} bytes before the end")
        have += got
    return content
