"""Verdicts by the content of their questions, in memory or in a file that outlives the run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from arcforge_core.errors import DataError


class VerdictCache:
    """Answers that were readable verdicts, by key. A commit follows every new one: a killed run loses none.

    Args:
        path: SQLite file; None keeps them in memory.

    Raises:
        DataError: the file is no such cache, or cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._open = sqlite3.connect(
                ":memory:" if path is None else path, isolation_level=None, check_same_thread=False, timeout=30.0
            )
            self._open.execute("PRAGMA journal_mode=WAL")
            self._open.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"options.cache={path}: cannot be used: {error}") from error

    def get(self, key: str) -> str | None:
        """Returns the answer of a key."""
        row = self._open.execute("SELECT answer FROM verdicts WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, answer: str) -> None:
        """Keeps an answer; one that is there stays."""
        self._open.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", (key, answer))
