"""A SQLite file that belongs to one process: opened under a lock, written in transactions, errors in one line."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arcforge_core.errors import ArcforgeError


class Database:
    """A file in write-ahead mode. A commit reaches the system, not the disk: a killed process loses nothing that it
    committed, a machine that loses power the last moments.

    Args:
        path: the file; created if absent.
        schema: statements that create absent tables.
        user: name of the processes that use the file, for errors.

    Raises:
        ArcforgeError: another process owns the file, it cannot be written, or it is damaged.
    """

    def __init__(self, path: Path, schema: str, user: str) -> None:
        self.path = path
        try:
            self._lock = open(f"{path}.lock", "w")  # noqa: SIM115 - held until close
        except OSError as error:
            raise ArcforgeError(f"{path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise ArcforgeError(f"{path}: another {user} uses this file") from error
        try:
            with self._named():
                self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                self._connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {schema}")
                ((checked,),) = self._connection.execute("PRAGMA quick_check(1)")
            if checked != "ok":
                raise ArcforgeError(f"{path} is damaged ({checked}): move it away")
        except ArcforgeError:
            self._lock.close()
            raise

    def close(self) -> None:
        """Closes the file and releases its lock."""
        self._connection.close()
        self._lock.close()

    def execute(self, statement: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        """Runs a statement; outside `transaction` it is one of its own.

        Raises:
            ArcforgeError: the disk is full, or the file is damaged.
        """
        with self._named():
            return self._connection.execute(statement, tuple(values))

    def executemany(self, statement: str, rows: Iterable[Iterable[Any]]) -> None:
        """Runs a statement for each row; see `execute`."""
        with self._named():
            self._connection.executemany(statement, [tuple(row) for row in rows])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits all statements of a block or none."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.commit()
        except BaseException:
            if self._connection.in_transaction:  # a full disk may have ended it
                self._connection.execute("ROLLBACK")
            raise

    def commit(self) -> None:
        """Ends a transaction."""
        self.execute("COMMIT")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Gives SQLite's errors the name of the file, and a remedy."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            text = str(error)
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
                raise ArcforgeError(f"{self.path}: the disk is full; make room and resume") from error
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise ArcforgeError(f"{self.path} is damaged ({text}): move it away") from error
            raise ArcforgeError(f"{self.path} cannot be used: {text}") from error
