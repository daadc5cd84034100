"""The caller's side of the keeper, on an asyncio loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from arcforge_core.contracts.sandbox import SandboxBoundError, SandboxError, SandboxFault, SandboxLimits

STARTING = 30.0
"""Seconds that the keeper may take to start."""


class KeeperClient:
    """Starts a keeper and exchanges messages with it.

    Args:
        config: see `arcforge_rl.sandbox.supervisor.Keeper`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.numbers = itertools.count()
        self.answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.spawned: dict[int, asyncio.Future[None]] = {}
        self.ended: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.outbox: deque[tuple[bytes, Sequence[int]]] = deque()
        self.lost: str | None = None
        self.gaps: Sequence[str] = ()

    async def start(self) -> None:
        """Starts the process.

        Raises:
            SandboxFault: it gave no answer in `STARTING` seconds, as on a machine that is too busy, or was killed.
            SandboxError: the keeper cannot work on this machine, with the reason.
        """
        self.loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            "-P",
            "-m",
            "arcforge_rl.sandbox.supervisor",
            json.dumps(self.config),
            str(theirs.fileno()),
        ]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.socket = ours
        self.socket.setblocking(False)
        self.ready: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        self.loop.add_reader(self.socket, self._receive)
        try:
            answer = await asyncio.wait_for(self.ready, STARTING)
        except TimeoutError as late:
            self.process.kill()  # it has no sandboxes, and may not get to see that its caller is gone
            await self.stop()
            raise SandboxFault(f"the keeper of the sandboxes did not start within {STARTING:g} s") from late
        except SandboxFault:
            await self.stop()
            raise
        if "error" in answer:
            await self.stop()
            raise SandboxError(f"sandboxes cannot be created here: {answer['error']}")
        self.gaps = answer["gaps"]

    async def stop(self) -> None:
        """Ends the process, which ends all of its sandboxes."""
        self._lose("the backend has been closed")
        await asyncio.to_thread(self.process.wait)

    async def ask(self, do: str, **message: Any) -> dict[str, Any]:
        """Sends a message and returns its answer.

        Raises:
            SandboxBoundError: the answer is a bound that was exceeded.
            SandboxError: the answer is another error.
        """
        number = next(self.numbers)
        answer = self.answers[number] = self.loop.create_future()
        self._send({"do": do, "id": number, **message})
        reply: dict[str, Any] = await answer
        if "bound" in reply:
            raise SandboxBoundError(f"{do}: {reply['error']}", reply["bound"], reply["limit"])
        if "error" in reply:
            raise SandboxError(f"{do}: {reply['error']}")
        return reply

    async def spawn(self, box: int, user: str, streams: list[int]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Starts a confined process of a user that waits for its command; takes over the `streams`.

        Returns:
            Its number, and a future of its end, set when all its processes are gone: ``code`` (None: the command never
            ran, or who reports it is dead), ``kills`` (out of memory), ``killed`` (whether it was asked for) and
            ``error``.
        """
        number = next(self.numbers)
        spawned, ended = self.spawned[number], self.ended[number] = self.loop.create_future(), self.loop.create_future()
        self._send({"do": "spawn", "box": box, "user": user, "exec": number}, streams)
        either: list[asyncio.Future[Any]] = [spawned, ended]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.kill(number)
            raise
        return number, ended

    def run(self, number: int, script: str, limits: SandboxLimits) -> None:
        """Releases a waiting process to run its command; if it has died meanwhile, its end is still reported."""
        self._send({"do": "run", "exec": number, "script": script, "limits": asdict(limits)})

    def kill(self, number: int) -> None:
        """Kills a command; its end is still reported."""
        if self.lost is None:
            self._send({"do": "kill", "exec": number})

    def signal(self, number: int, signal: int) -> None:
        """Sends a signal to a command's first process, if it has not ended."""
        if self.lost is None:
            self._send({"do": "signal", "exec": number, "signal": signal})

    def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Sends a message, immediately or when the keeper has room again; closes `fds` once they are sent."""
        if self.lost is not None:
            _close(fds)
            raise SandboxFault(self.lost)
        self.outbox.append((json.dumps(message).encode(), fds))
        if len(self.outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            while self.outbox:
                data, fds = self.outbox[0]
                socket.send_fds(self.socket, [data], fds)
                _close(self.outbox.popleft()[1])
        except BlockingIOError:
            self.loop.add_writer(self.socket, self._flush)
            return
        except OSError as error:
            self._lose(f"the keeper is gone: {error}")
            return
        self.loop.remove_writer(self.socket)

    def _receive(self) -> None:
        while self.lost is None:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(f"the keeper is gone: {error}")
                return
            if not data:
                self._lose("the keeper is gone")
                return
            message = json.loads(data)
            if "ready" in message:
                self.ready.set_result(message)
            elif "id" in message:
                _resolve(self.answers.pop(message["id"]), message)
            elif "spawned" in message:
                _resolve(self.spawned.pop(message["exec"]), None)
            else:
                self.spawned.pop(message["exec"], None)
                _resolve(self.ended.pop(message["exec"]), message)

    def _lose(self, reason: str) -> None:
        """Fails all pending requests."""
        if self.lost is not None:
            return
        self.lost = reason
        self.loop.remove_reader(self.socket)
        self.loop.remove_writer(self.socket)
        self.socket.close()
        while self.outbox:
            _close(self.outbox.popleft()[1])
        for future in [self.ready, *self.answers.values(), *self.ended.values()]:
            if not future.done():
                future.set_exception(SandboxFault(reason))
                future.exception()  # some of them are not awaited


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
