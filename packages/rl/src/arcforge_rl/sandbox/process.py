"""A program that a sandbox runs beside its commands."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from arcforge_core.contracts.sandbox import Command, CommandStatus, ExitStatus, SandboxError, SandboxFault
from arcforge_rl.sandbox.streams import Stream

SIGNALS = range(1, signal.NSIG)


class StartedProcess:
    """A started program; see `arcforge_core.contracts.sandbox.Process`.

    Args:
        ended: set when all its processes are gone: ``code`` (None: not known), ``kills`` (out of memory), ``killed``
            (whether it was asked for) and ``error``.
        stdin: writer into its standard input.
        outputs: its standard output and standard error.
        send: sends it a signal, if it has not ended.
        kill: kills it, if it has not ended.
    """

    def __init__(
        self,
        ended: asyncio.Future[dict[str, Any]],
        stdin: asyncio.StreamWriter,
        outputs: tuple[Stream, Stream],
        send: Callable[[int], None],
        kill: Callable[[], None],
    ) -> None:
        self.ended, self.stdin, self.outputs, self.send, self.kill = ended, stdin, outputs, send, kill
        self.stdout, self.stderr = (stream.reader for stream in outputs)
        ended.add_done_callback(self._finish)

    async def wait(self) -> ExitStatus:
        """Returns how the program ended; see the contract."""
        return status(await asyncio.shield(self.ended))

    def send_signal(self, number: int) -> None:
        """Sends a signal to the program."""
        if number not in SIGNALS:
            raise SandboxError(f"signal {number}: must be {SIGNALS.start} to {SIGNALS.stop - 1}")
        self.send(int(number))

    def _finish(self, ended: asyncio.Future[dict[str, Any]]) -> None:
        """Ends the streams: another command may hold their other ends."""
        fault: Exception | None = SandboxFault("the process was given up") if ended.cancelled() else None
        try:
            if fault is None:
                status(ended.result())
        except SandboxFault as error:
            fault = error
        for stream in self.outputs:
            stream.finish(fault)
        transport = self.stdin.transport
        if not transport.is_closing() or transport.get_write_buffer_size():
            transport.abort()


def check_start(command: Command, buffer_bytes: int) -> None:
    """Raises `SandboxError` if a program cannot be started so."""
    if command.stdin:
        raise SandboxError("stdin: must be empty for a started process, whose input is written to it")
    if buffer_bytes < 1:
        raise SandboxError(f"buffer_bytes {buffer_bytes}: must be at least 1")


def status(end: dict[str, Any]) -> ExitStatus:
    """Returns how a started program ended; raises `SandboxFault` if nobody meant it to.

    Exit codes of 128 + n are signal n, as shells report it, because nothing else is known.
    """
    code, kills = end["code"], end["kills"]
    if end["error"]:
        raise SandboxFault(end["error"])
    if kills and code != 0:
        return ExitStatus(CommandStatus.OUT_OF_MEMORY, None)
    if code is None and not end["killed"]:
        raise SandboxFault("the process was killed from outside its sandbox, or did not start")
    if code is None or 128 < code < 128 + signal.NSIG:
        return ExitStatus(CommandStatus.SIGNAL, int(signal.SIGKILL) if code is None else code - 128)
    return ExitStatus(CommandStatus.EXIT, code)


async def writer(fd: int) -> asyncio.StreamWriter:
    """Returns a writer into a pipe, which it closes."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(fd, "wb", buffering=0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)
