"""What tests of hostile programs share: limits, how a function becomes a program of its own, and who is still alive."""

from __future__ import annotations

import inspect
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from arcforge_core.contracts.sandbox import SandboxLimits

LIMITS = SandboxLimits(
    cpu_seconds=5, wall_seconds=10, memory_bytes=256 << 20, processes=32, disk_bytes=16 << 20, output_bytes=1 << 16
)
PRELUDE = "import ctypes, os, socket, struct, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"
VERDICT = """
try:
    ATTACK()
except BaseException as error:
    print("HELD", type(error).__name__, error)
else:
    print("BROKEN")
"""


def program(attack: Callable[[], None]) -> str:
    """Returns the source of a program that prints BROKEN if the function ends, HELD if it raises."""
    return PRELUDE + inspect.getsource(attack) + VERDICT.replace("ATTACK", attack.__name__)


def outside(python: str, source: str) -> subprocess.CompletedProcess[str]:
    """Runs a program without any sandbox, to show that it would do there what it is stopped from inside."""
    return subprocess.run([python, "-I", "-S", "-c", source], capture_output=True, text=True, check=False, timeout=60)


def processes_like(marker: str) -> list[int]:
    """Returns the processes, without this one, that have the marker in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


GIVE_STDOUT = """
import os, socket, time
with socket.socket(socket.AF_UNIX) as s:
    while True:
        try:
            s.connect("meeting")
            break
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.01)
    socket.send_fds(s, [b"x"], [1])
    s.recv(1)
os.write(1, b"mine\\n")
"""
"""A program that hands its standard output to the one that listens on the socket ``meeting`` in its folder."""
