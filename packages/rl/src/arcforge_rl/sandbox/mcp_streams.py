"""MCP over the standard streams of a program in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from arcforge_core.contracts.sandbox import Process

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

LAST = 300
"""Bytes of standard error that are kept."""


@asynccontextmanager
async def streams_of(process: Process, said: bytearray | None = None) -> AsyncIterator[TransportStreams]:
    """Connects a client to the standard streams of a program, one message a line; kills the program at the end.

    Args:
        process: the program.
        said: receives the last bytes that the program writes to standard error.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception]()
    write, outgoing = anyio.create_memory_object_stream[SessionMessage]()

    async def receive() -> None:
        async with incoming:
            while line := await process.stdout.readline():
                try:
                    message: SessionMessage | Exception = SessionMessage(jsonrpc_message_adapter.validate_json(line))
                except ValueError as error:
                    message = error
                await incoming.send(message)

    async def send() -> None:
        async for message in outgoing:
            process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()

    async def discard() -> None:
        while data := await process.stderr.read(1 << 16):
            if said is not None:
                said[:] = (said + data)[-LAST:]

    async with anyio.create_task_group() as group, read, write, outgoing:
        for work in (receive, send, discard):
            group.start_soon(work)
        try:
            yield read, write
        finally:
            process.kill()
            group.cancel_scope.cancel()
