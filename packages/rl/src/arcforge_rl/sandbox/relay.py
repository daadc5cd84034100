"""Relays connections between TCP listeners and Unix sockets, byte by byte, in both directions independently.

Needs only Python 3.11: a container runs the text of this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Mapping

CONNECTIONS = 128
"""Maximum open connections; further ones wait until one is closed."""
CHUNK = 1 << 16
"""Maximum bytes held of each direction: while a reader takes none, its writer waits."""
PAUSE = 0.01
"""Seconds before a socket is tried again whose queue is full, or that this process has no room for."""


def main(forward: list[str]) -> None:
    """Listens on each port of ``PORT=PATH`` and relays; prints a line once all listen."""
    listeners = {listen(int(port)): path for port, _, path in (pair.partition("=") for pair in forward)}
    print("listening", flush=True)
    relay(listeners)


def listen(port: int) -> socket.socket:
    """Returns a listening socket on the loopback interface."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # its connections inherit both: bounds the kernel's memory
        listener.setsockopt(socket.SOL_SOCKET, option, 1 << 17)
    listener.bind(("127.0.0.1", port))
    listener.listen(1024)
    return listener


def relay(listeners: Mapping[socket.socket, str]) -> None:
    """Serves until the process is killed; each listener leads to the Unix socket of a path."""

    async def serve() -> None:
        free = asyncio.Semaphore(CONNECTIONS)
        async with asyncio.TaskGroup() as tasks:
            for listener, path in listeners.items():
                listener.setblocking(False)
                tasks.create_task(accept(listener, path, free, tasks))

    asyncio.run(serve())


async def accept(listener: socket.socket, path: str, free: asyncio.Semaphore, tasks: asyncio.TaskGroup) -> None:
    """Accepts connections for ever, as many as are free."""
    loop = asyncio.get_running_loop()
    while True:
        await free.acquire()
        try:
            client, _ = await loop.sock_accept(listener)
        except OSError:  # the client has gone, or no descriptor is left
            free.release()
            await asyncio.sleep(PAUSE)
            continue
        tasks.create_task(join(client, path)).add_done_callback(lambda _: free.release())


async def join(client: socket.socket, path: str) -> None:
    """Relays one connection. If either side fails, or does not listen, the client's connection is reset."""
    with client, socket.socket(socket.AF_UNIX) as target:
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            target.setblocking(False)
            await dial(target, path)
            async with asyncio.TaskGroup() as both:
                both.create_task(pump(client, target))
                both.create_task(pump(target, client))
        except* OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def dial(target: socket.socket, path: str) -> None:
    """Connects to a Unix socket, when its queue has room; raises OSError if no program listens."""
    while True:
        with contextlib.suppress(BlockingIOError):
            target.connect(path)
            return
        await asyncio.sleep(PAUSE)


async def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copies bytes as they come until the source's writer closes its direction, then closes the sink's."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, CHUNK):
        await loop.sock_sendall(sink, data)
    sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(sys.argv[1:])
