"""A network of one sandbox: a loopback interface, and ports on it that lead to Unix sockets of the host.

A process of the keeper makes the network, listens in it and relays, until it is killed with the sandbox. It has no
other network either; a Unix socket with a path is reached from any.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import struct
from collections.abc import Mapping
from typing import NoReturn

from arcforge_rl.sandbox import system
from arcforge_rl.sandbox.state import reached

SET_FLAGS, UP = 0x8914, 0x1
"""An ioctl of network interfaces, and its flag."""
REPORT = 3
"""File descriptor of the relay's report: empty once it listens, otherwise the reason why it cannot."""


class Network:
    """Starts the process that makes the network and relays.

    Args:
        forward: port -> path of a Unix socket.

    Attributes:
        report: descriptor that becomes readable when `begun` may be called.
    """

    def __init__(self, forward: Mapping[int, str]) -> None:
        import arcforge_rl.sandbox.relay  # noqa: F401  (once for all later forks; most keepers need no event loop)

        self.report, report_end = os.pipe()
        keeper = os.getpid()
        self.namespace = -1
        self.pid = os.fork()
        if not self.pid:
            serve(forward, keeper, report_end)
        os.close(report_end)

    def begun(self) -> str | None:
        """Returns None if the ports listen, otherwise why not."""
        error = os.read(self.report, 4096).decode()
        os.close(self.report)
        self.report = -1
        if error:
            return error
        try:
            self.namespace = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as problem:  # it was killed
            return str(problem)
        return None

    def enter(self) -> None:
        """Moves this process into the network."""
        system.enter_namespace(self.namespace, system.NEW_NETWORK)

    def check(self) -> None:
        """Raises ChildProcessError if the relay has died, which nothing inside can do."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
        if not self.pid:
            raise ChildProcessError("the relay of the sandbox's forwarded ports was killed")

    def end(self) -> None:
        """Ends the relay; the network ends with the last process in it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        for fd in (self.report, self.namespace):
            if fd >= 0:
                os.close(fd)
        self.report = self.namespace = -1


def serve(forward: Mapping[int, str], keeper: int, report: int) -> NoReturn:
    """Is the relay's process: it has none of the keeper's descriptors, and dies with it."""
    try:
        system.prctl(system.SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(report, REPORT, inheritable=False)
        os.closerange(REPORT + 1, 1 << 16)
        if os.getppid() != keeper:
            os._exit(1)
        gc.enable()
        forward = {port: reached(path) for port, path in forward.items()}
        for path in forward.values():
            os.stat(path)
        system.unshare(system.NEW_NETWORK)
        with socket.socket() as control:
            fcntl.ioctl(control, SET_FLAGS, struct.pack("16sH14x", b"lo", UP))
        from arcforge_rl.sandbox.relay import listen, relay

        listeners = {listen(port): path for port, path in forward.items()}
        os.close(REPORT)
    except BaseException as error:
        os.write(REPORT, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    try:
        relay(listeners)
    finally:
        os._exit(1)
