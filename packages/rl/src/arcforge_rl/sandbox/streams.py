"""Pipes of a program on an asyncio loop: fed, collected or passed on while it runs, with bounded memory."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import sys
import termios
from abc import abstractmethod
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
            os.close(self.detach())

    def detach(self) -> int:
        """Returns the descriptor, which is no longer this object's."""
        self.loop.remove_reader(self.fd)
        self.loop.remove_writer(self.fd)
        fd, self.fd = self.fd, -1
        return fd


class Source(Pipe):
    """The reading end of a pipe; its owner takes what `_read` reads."""

    @abstractmethod
    def _take(self, chunk: bytes) -> None:
        """Takes bytes; none at the end of the stream."""

    def _read(self) -> int:
        try:
            chunk = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self.close()
        self._take(chunk)
        return len(chunk)

    def drain(self) -> None:
        """Reads the bytes that are in the pipe now and closes it, even if a process elsewhere was given the other end.

        Those bytes are at most what a pipe holds.
        """
        if self.fd >= 0:
            count = bytearray(4)
            fcntl.ioctl(self.fd, termios.FIONREAD, count)
            left = int.from_bytes(count, sys.byteorder)
            while left > 0 and self.fd >= 0 and (read := self._read()):
                left -= read
            self.close()


class Stream(Source, asyncio.ReadTransport):
    """Feeds a reader as fast as its owner reads: while the reader's buffer is full, the pipe's writers wait.

    Args:
        fd: the reading end, which it owns.
        limit: of the reader.
    """

    def __init__(self, fd: int, limit: int) -> None:
        super().__init__(fd)
        self.reader = asyncio.StreamReader(limit)
        self.reader.set_transport(self)
        self.resume_reading()

    def pause_reading(self) -> None:
        """Stops reading; called by the reader."""
        self.loop.remove_reader(self.fd)

    def resume_reading(self) -> None:
        """Continues; called by the reader."""
        if self.fd >= 0:
            self.loop.add_reader(self.fd, self._read)

    def _take(self, chunk: bytes) -> None:
        if chunk:
            self.reader.feed_data(chunk)
        else:
            self.reader.feed_eof()

    def finish(self, fault: Exception | None) -> None:
        """Ends the stream after the bytes that are in the pipe, or with an error."""
        self.drain()
        if fault is not None:
            self.reader.set_exception(fault)
        self.reader.feed_eof()


class Collector(Source):
    """Reads a pipe while its writers run and keeps its first bytes; owns `fd`, the reading end."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.data = io.BytesIO()  # its bytes leave without a copy, which would block the loop

    def start(self, limit: int, overflow: Callable[[], None]) -> None:
        """Starts reading; bytes after the first `limit` are discarded, and each time `overflow` is called."""
        self.limit, self.overflow = limit, overflow
        self.loop.add_reader(self.fd, self._read)

    def _take(self, chunk: bytes) -> None:
        room = self.limit - self.data.tell()
        self.data.write(chunk[:room])
        if len(chunk) > room:
            self.overflow()

    def finish(self) -> bytes:
        """Returns all bytes that were kept, after those that are in the pipe now."""
        self.drain()
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
