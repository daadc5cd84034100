"""Tools of the keeper's forks: users to act as, descriptors in their places, children to find and to end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn


def supervise(child: int, status: int) -> NoReturn:
    """Waits for the command, kills all of its remaining processes, and reports how it ended."""
    signal.signal(signal.SIGTERM, lambda *_: end_all([child]))
    os.write(status, json.dumps({"child-pid": child}).encode() + b"\n")
    os.closerange(0, status)
    os.closerange(status + 1, 1 << 16)
    code = None
    while True:
        try:
            pid, how = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == child:
            ended = os.waitstatus_to_exitcode(how)
            code = ended if ended >= 0 else 128 - ended
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if code is not None:  # each death reparents its children: repeat until none is left
            end_all(children(os.getpid()))
    os.write(status, json.dumps({"exit-code": code}).encode() + b"\n")
    os._exit(0)


def end_all(pids: list[int]) -> None:
    """Kills processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(parent: int) -> list[int]:
    """Returns the processes whose parent is `parent`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent:
                    found.append(int(name))
    return found


def inner_pid(pid: int) -> int:
    """Returns a process's number in its own process namespace."""
    [line] = [line for line in Path("/proc", str(pid), "status").read_text().splitlines() if line.startswith("NSpid:")]
    return int(line.split()[-1])


@contextlib.contextmanager
def acting_as(user: int | None) -> Iterator[None]:
    """Acts as the unprivileged user in the block; a program started there stays so, as exec replaces the saved ids."""
    if user is None:
        yield
        return
    os.setresgid(user, user, 0)
    os.setresuid(user, user, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


def drop_privileges(user: int | None) -> None:
    """Becomes the unprivileged user permanently."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def place(fds: dict[int, int]) -> None:
    """Moves descriptors to their numbers and closes all others."""
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for number, fd in fds.items()}
    for number, fd in high.items():
        os.dup2(fd, number)
    for number in range(20):
        if number not in fds:
            with contextlib.suppress(OSError):  # most are already closed
                os.close(number)
    os.closerange(20, 1 << 16)


def own_mark() -> str:
    """Returns a unique mark of this keeper: its process namespace and its pid there."""
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}"


def end_waiting() -> None:
    """Kills processes that wait for a bubblewrap that died with its keeper before releasing its child."""
    ours = f"bwrap-{own_mark().rpartition('-')[0]}-"
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                program = Path("/proc", name, "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                keeper = program.removeprefix(ours)
                if keeper != program and not os.path.exists(f"/proc/{keeper}"):
                    os.kill(int(name), signal.SIGKILL)


def threads_of(user: int) -> int:
    """Returns the number of a user's processes and threads on this machine."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it has ended
                continue
    return count
