"""Pipes of commands."""

import asyncio
import os
import time

import pytest

from arcforge_rl.sandbox.streams import Collector

SIZE = 64 << 20


def write(fd):
    """Writes `SIZE` bytes and closes the pipe."""
    with open(fd, "wb", buffering=0) as pipe:
        for n in range(SIZE >> 16):
            pipe.write(bytes([n % 256]) * (1 << 16))


def test_a_long_output_is_not_copied_at_its_end():
    """A download is one; the event loop would stand still for as long as that takes."""

    async def scene():
        reading, writing = os.pipe()
        collector = Collector(reading)
        collector.start(SIZE, pytest.fail)
        await asyncio.to_thread(write, writing)
        start = time.thread_time()
        return collector.finish(), time.thread_time() - start

    data, seconds = asyncio.run(scene())
    assert len(data) == SIZE and data[-1] == ((SIZE >> 16) - 1) % 256
    start = time.thread_time()
    assert len(bytearray(data)) == SIZE
    assert seconds < 0.2 * (time.thread_time() - start)
