"""Sessions on disk: a folder with one file for each open session, so that they survive the gateway's process.

A file has JSON lines: the session, then what happened in it, in order. A line is handed to the system before the
client receives what it records, so a process that is killed loses no turn that a client has seen; a machine that loses
power loses the last moments. A file is deleted once its session is closed and the record was sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from arcforge_core.contracts.chat import ChatTemplate
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.files.lock import locked
from arcforge_serving.server.shared.errors import NotKeptError

VERSION = 1
OPTION, SUFFIX = "gateway.log", ".jsonl"
Line = dict[str, Any]


class SessionFile:
    """The lines of one session, written one at a time. No descriptor is kept open: there may be thousands of sessions.

    Args:
        path: the file.
        size: bytes of its whole lines.

    Attributes:
        failures: lines that could not be written.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path, self.failures = path, 0
        self._size, self._is_open = size, True

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends a line, or nothing of it; does nothing after `close`.

        Raises:
            NotKeptError: the disk is full, or the file cannot be written; later lines may be.
        """
        if not self._is_open:
            return
        written = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                self._put(descriptor, written)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.failures += 1
            raise NotKeptError(f"{OPTION}: the session cannot be written: {error.strerror}") from error
        self._size += len(written)

    def _put(self, descriptor: int, written: bytes) -> None:
        done = 0
        try:
            while done < len(written):
                done += os.pwrite(descriptor, written[done:], self._size + done)
        except OSError:
            os.ftruncate(descriptor, self._size)  # frees what was written of it
            raise

    def close(self) -> None:
        """Takes no more lines."""
        self._is_open = False

    def delete(self) -> None:
        """Deletes the file."""
        self.close()
        self.path.unlink(missing_ok=True)


def write_line(file: SessionFile | None, line: Callable[[], Line]) -> None:
    """Writes a line, which is made only if there is a file.

    Raises:
        NotKeptError: see `SessionFile.write`.
    """
    if file is not None:
        file.write(line())


class SessionLog:
    """The folder. One process at a time uses it.

    Args:
        folder: created if absent, for this user alone.
        model: name of the served one.
        template: of the model.

    Raises:
        ConfigError: it cannot be used.
    """

    def __init__(self, folder: str, model: str, template: ChatTemplate) -> None:
        self.folder = Path(folder)
        self._kind = {"version": VERSION, "model": model, "tokenizer": template.tokenizer.sha256}
        self._held = ExitStack()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held.enter_context(locked(self.folder))
        except OSError as error:
            raise ConfigError(OPTION, folder, f"must be a folder that can be written: {error.strerror}") from error
        except ArcforgeError as error:
            raise ConfigError(OPTION, folder, f"must be this process's alone: {error}") from error

    def close(self) -> None:
        """Lets another process use the folder."""
        self._held.close()

    def create(self, id_: str, session: Mapping[str, Any]) -> SessionFile:
        """Begins the file of a session.

        Raises:
            NotKeptError: see `SessionFile.write`.
        """
        file = SessionFile(self.folder / f"{id_}{SUFFIX}")
        try:
            file.write({**self._kind, "session": session})
        except NotKeptError:
            file.delete()
            raise
        return file

    def files(self) -> Iterator[tuple[SessionFile, list[Line]]]:
        """Yields the file of each session with its lines, the session's own first. A last line that is torn is cut off.

        Raises:
            ConfigError: a file is damaged, or has a session of another model.
        """
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            content = path.read_bytes()
            whole, _, torn = content.rpartition(b"\n")
            if torn:
                os.truncate(path, len(content) - len(torn))
            if not whole:  # killed before the session was opened: no client knows of it
                path.unlink()
                continue
            lines = [self._read(path, number, line) for number, line in enumerate(whole.split(b"\n"), 1)]
            self._check(path, lines[0])
            yield SessionFile(path, len(content) - len(torn)), lines

    def _read(self, path: Path, number: int, line: bytes) -> Line:
        try:
            found: Line = json.loads(line)
        except ValueError as error:
            raise self.damaged(path, f"line {number} is no JSON") from error
        if not isinstance(found, dict):
            raise self.damaged(path, f"line {number} is no object")
        return found

    def damaged(self, path: Path, what: str) -> ConfigError:
        """Returns the error of a file whose lines cannot be used."""
        return ConfigError(OPTION, str(self.folder), f"{path.name} is damaged ({what}): move it away")

    def _check(self, path: Path, first: Line) -> None:
        for name, expected in self._kind.items():
            if first.get(name) != expected:
                accepted = f"must have sessions of {name} {expected}, but {path.name} is of {first.get(name)}"
                raise ConfigError(OPTION, str(self.folder), f"{accepted}; choose another folder, or move them away")
