"""How a trainer gets an orchestrator's process: forked by itself, or started by a launcher and met at an address."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from arcforge_core.errors import ArcforgeError
from arcforge_rl.orchestrator.process.child import Build, Given, run_orchestrator

IMPORTED = ["arcforge_rl.orchestrator.process.child"]
PAUSE = 0.1
"""Seconds from one attempt to meet to the next."""
Address = str | tuple[str, int]
"""Path of a Unix socket, or host and port."""


class LifeProcess(Protocol):
    """A process of an orchestrator."""

    @property
    def pid(self) -> int | None:
        """Its id on its machine."""

    def kill(self) -> None:
        """Ends it (SIGKILL); without effect on one that has ended, or is on another machine."""

    def join(self) -> None:
        """Waits for its end, where that can be seen from here."""


class Begun(NamedTuple):
    """A process, and the pipe to it."""

    process: LifeProcess
    pipe: Connection


def forked(given: Given, build: Build, dead_seconds: float) -> Begun:
    """Returns a process that is forked from one which has imported everything: it is there within a second.

    Args:
        given, build, dead_seconds: see `run_orchestrator`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    pipe, theirs = context.Pipe()
    process = context.Process(
        target=run_orchestrator, args=(given, build, theirs, dead_seconds), name="arcforge-orchestrator"
    )
    process.start()
    theirs.close()
    return Begun(process, pipe)


class Met:
    """An orchestrator that another process has started. Implements `LifeProcess`.

    Args:
        pid: its id.
        host: name of its machine.
    """

    def __init__(self, pid: int, host: str) -> None:
        self.pid, self._handle = pid, -1
        if host == socket.gethostname():
            with suppress(ProcessLookupError):  # it has ended already
                self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        """See `LifeProcess`. One elsewhere ends by itself when its pipe is closed."""
        if self._handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def join(self) -> None:
        """See `LifeProcess`."""
        if self._handle >= 0:
            select.select([self._handle], [], [])
            os.close(self._handle)
            self._handle = -1


class Meeting:
    """The trainer's side: orchestrators come to an address, and wait until one is needed.

    Args:
        address: of the meeting.
        key: that both know.
        seconds: for which the trainer waits for an orchestrator.
    """

    def __init__(self, address: Address, key: bytes, seconds: float) -> None:
        if isinstance(address, str):
            Path(address).unlink(missing_ok=True)  # of a trainer that was killed
        self._listener, self._seconds = Listener(address, authkey=key), seconds
        self._waiting: SimpleQueue[Connection] = SimpleQueue()
        threading.Thread(target=self._welcome, name="arcforge-meeting", daemon=True).start()

    def begun(self, given: Given, build: Build, dead_seconds: float) -> Begun:
        """Returns the orchestrator that has come first and still waits.

        Args:
            given, build, dead_seconds: see `run_orchestrator`.

        Raises:
            ArcforgeError: none has come in time.
        """
        last = time.monotonic() + self._seconds
        while True:
            try:
                pipe = self._waiting.get(timeout=max(0.0, last - time.monotonic()))
            except Empty:
                raise ArcforgeError(f"no orchestrator has come within {self._seconds:g} s") from None
            try:
                pid, host = pipe.recv()
                met = Met(pid, host)
                pipe.send((given, build, dead_seconds))
            except (EOFError, OSError):  # it ended while it waited; another one comes
                pipe.close()
                continue
            return Begun(met, pipe)

    def _welcome(self) -> None:
        while True:
            with suppress(
                multiprocessing.AuthenticationError, EOFError, ConnectionError
            ):  # a stranger, or one that left
                self._waiting.put(self._listener.accept())


def meet(address: Address, key: bytes, seconds: float) -> None:
    """Is an orchestrator that a launcher has started: meets the trainer, works for it, and ends the process.

    Args:
        address, key: see `Meeting`.
        seconds: in which a trainer must be there.

    Raises:
        ArcforgeError: there is none.
    """
    last = time.monotonic() + seconds
    while True:
        try:
            pipe = Client(address, authkey=key)
            break
        except (OSError, EOFError) as error:
            if time.monotonic() > last:
                raise ArcforgeError(f"no trainer has come within {seconds:g} s: {error}") from error
            time.sleep(PAUSE)
    try:
        pipe.send((os.getpid(), socket.gethostname()))
        given, build, dead_seconds = pipe.recv()
    except (EOFError, OSError):  # the trainer has ended before it needed one
        os._exit(0)
    assert isinstance(pipe, Connection)
    run_orchestrator(given, build, pipe, dead_seconds)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the pipe closes with the process, so that its exit code is decided before the trainer kills it
