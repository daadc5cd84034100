"""For tests: a relay between two roles that spoils what passes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def spoiling(target: tuple[str, int], flip: int | None = None, cut: int | None = None) -> Iterator[tuple[str, int]]:
    """Yields an address that relays answers of `target`: with the byte `flip` changed, or ended before `cut`."""

    def forward(source: socket.socket, sink: socket.socket, spoils: bool) -> None:
        passed = 0
        with source, sink, suppress(OSError):  # one of the two has gone: so has the other
            while content := bytearray(source.recv(65536)):
                if spoils and flip is not None and passed <= flip < passed + len(content):
                    content[flip - passed] ^= 0x10
                if spoils and cut is not None and passed + len(content) > cut:
                    sink.sendall(content[: cut - passed])
                    break
                passed += len(content)
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)  # closing is not enough: the other direction has the socket, too

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # it was closed
            server = socket.create_connection(target)
            for pair in ((client.dup(), server.dup(), False), (server, client, True)):
                threading.Thread(target=forward, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[:2]
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
