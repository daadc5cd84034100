"""Pipes of a command on an asyncio loop: fed and collected while it runs, with bounded memory."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import sys
import termios
from collections.abc import Callable

CHUNK = 1 << 16


class Pipe:
    """One end of a pipe, served by the running loop."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Stops reading or writing; idempotent."""
        if self.fd >= 0:
            self.loop.remove_reader(self.fd)
            self.loop.remove_writer(self.fd)
            os.close(self.fd)
            self.fd = -1


class Collector(Pipe):
    """Reads a pipe while its writers run and keeps its first bytes; owns `fd`, the reading end."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.data = io.BytesIO()  # its bytes leave without a copy, which would block the loop

    def start(self, limit: int, overflow: Callable[[], None]) -> None:
        """Starts reading; bytes after the first `limit` are discarded, and each time `overflow` is called."""
        self.limit, self.overflow = limit, overflow
        self.loop.add_reader(self.fd, self._read)

    def _read(self) -> int:
        try:
            chunk = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self.close()
            return 0
        room = self.limit - self.data.tell()
        self.data.write(chunk[:room])
        if len(chunk) > room:
            self.overflow()
        return len(chunk)

    def finish(self) -> bytes:
        """Reads the bytes that are in the pipe now and closes it, even if a process elsewhere was given the other end.

        Returns:
            All bytes that were kept.
        """
        if self.fd >= 0:
            count = bytearray(4)
            fcntl.ioctl(self.fd, termios.FIONREAD, count)
            left = int.from_bytes(count, sys.byteorder)
            while left > 0 and self.fd >= 0 and (read := self._read()):
                left -= read
            self.close()
        return self.data.getvalue()


class Feeder(Pipe):
    """Writes bytes into a pipe as the reader consumes them, then closes it; stops if the reader closes its end."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.rest = memoryview(b"")

    def start(self, data: bytes) -> None:
        self.rest = memoryview(data)
        self.loop.add_writer(self.fd, self._write)
        self._write()

    def _write(self) -> None:
        try:
            while self.rest:
                self.rest = self.rest[os.write(self.fd, self.rest[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass  # a program need not read its input
        self.close()
