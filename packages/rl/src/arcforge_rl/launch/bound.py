"""Run as a program, before another one: binds that one's life to its parent's, and its work to some cores.

    python -S bound.py PARENT CORES COMMAND ...

The kernel kills the process (SIGKILL) when the thread of PARENT that started it ends, whatever ended that. CORES are
numbers with commas between them, or nothing. The command then takes the place of this program: its process id and its
exit code are its own. Standard library only, so that it costs milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NO_START = 127


def main(parent: str, cores: str, *command: str) -> None:
    """Becomes the command; returns only if that cannot be started."""
    try:
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if os.getppid() != int(parent):  # it ended before the kernel knew that it matters
            os._exit(-signal.SIGKILL & 0xFF)
        if cores:
            os.sched_setaffinity(0, map(int, cores.split(",")))
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NO_START)


if __name__ == "__main__":
    main(*sys.argv[1:])
