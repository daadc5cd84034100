"""Runs a shell on a terminal of its own; a program of the agent's sandbox, not imported here.

``python3 -I -c PROGRAM ROWS COLUMNS``: standard input is typed, standard output is what the terminal prints.
"""

import fcntl
import os
import pty
import select
import struct
import sys
import termios


def main(rows: int, columns: int) -> int:
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="linux", LINES=str(rows), COLUMNS=str(columns), PS1="$ ")
        os.execvp("bash", ["bash", "--norc", "--noprofile"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    while True:
        ready, _, _ = select.select([0, terminal], [], [], 0.1)
        if not ready:  # programs that the shell left may hold the terminal open
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
        for source, target in ((terminal, 1), (0, terminal)):
            if source not in ready:
                continue
            try:
                data = os.read(source, 1 << 14)
            except OSError:  # no program has the terminal any more
                data = b""
            if not data:
                os.close(terminal)
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            while data:
                data = data[os.write(target, data) :]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
