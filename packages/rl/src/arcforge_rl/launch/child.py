"""A process of a run, on the machine of the caller: it ends with the caller, and writes to a log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arcforge_rl.launch import bound

LAST_LINES = 4096
"""Bytes at the end of a log in which the last words are."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class ProcessPart:
    """Description of a process of a run.

    Attributes:
        role: ``engine``, ``orchestrator`` or ``trainer``.
        command: the program and its arguments.
        given: bytes on its standard input, which ends after them.
        variables: of its environment, all of them.
        cores: that it may use; None: those of its parent.
        log: file to which its output is appended.
        folder: in which it works.
    """

    role: str
    command: Sequence[str]
    given: bytes
    variables: Mapping[str, str]
    cores: Sequence[int] | None
    log: Path
    folder: str


class Launched(Protocol):
    """A process that was started, here or elsewhere."""

    def poll(self) -> int | None:
        """Returns its exit code, negative for a signal; None while it runs."""

    def signal(self, number: int) -> None:
        """Sends a signal; without effect on one that has ended."""

    def release(self) -> None:
        """Kills it if it still runs, waits for its end, and frees what it holds."""


class Child:
    """Implements `Launched`. Its descendants of the same session end with it if they are still there.

    Args:
        part: see `ProcessPart`. The calling thread must live as long as the process shall.
    """

    def __init__(self, part: ProcessPart) -> None:
        cores = ",".join(map(str, part.cores or ()))
        shim = [sys.executable, "-S", str(bound.__file__), str(os.getpid()), cores]
        with part.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*shim, *part.command], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                env=dict(part.variables), cwd=part.folder, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as pipe:  # an early end is seen by `poll`
            pipe.write(part.given)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """See `Launched`."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """See `Launched`."""
        self._process.send_signal(number)

    def release(self) -> None:
        """See `Launched`."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # a session of its own: this process and what it left
        self._process.wait()


def last_words(log: Path, most: int = 1) -> str:
    """Returns the last lines that a process wrote, in one line; the one that begins with ``error:`` where there is one.

    Args:
        log: file of its output.
        most: lines.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_LINES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [" ".join(ESCAPES.sub("", line).split()) for line in text.splitlines()]
    lines = [line for line in lines if line]
    for line in reversed(lines):
        if line.startswith("error: ") and "fault of arcforge" not in line:
            return line.removeprefix("error: ")
    if lines and "fault of arcforge" in lines[-1]:  # the line before it names the exception
        lines.pop()
    return " / ".join(lines[-most:])
