"""The execution service's queue: one SQLite file; a job is queued, running or done, and has at most one result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from arcforge_core.contracts.sandbox import CommandStatus, ExecResult
from arcforge_core.errors import ArcforgeError
from arcforge_rl.execution.database import Database
from arcforge_rl.execution.jobs import ExecutionJob, JobResult

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued',
    attempts INTEGER NOT NULL DEFAULT 0,
    spec TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS waiting ON jobs (state, priority DESC, number);
CREATE TABLE IF NOT EXISTS results (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE REFERENCES jobs (id),
    outcome TEXT, code INTEGER, stdout BLOB, stderr BLOB, seconds REAL, error TEXT
);
"""
STATES = ("queued", "running", "done")


class JobQueue:
    """Every method is one transaction, so after any crash the file contains each job once, with its state.

    Args:
        path: the file; created if absent. Only one process may own it.

    Raises:
        ArcforgeError: another process owns it.
    """

    def __init__(self, path: Path) -> None:
        self.database = Database(path, SCHEMA, "execution service")
        self.database.execute("UPDATE jobs SET state = 'queued' WHERE state = 'running'")

    def close(self) -> None:
        """Closes the file and releases its lock."""
        self.database.close()

    def submit(self, jobs: Iterable[ExecutionJob]) -> int:
        """Adds jobs and returns the number of new ones; ignores known ids with the same content.

        Raises:
            ArcforgeError: an id is known with other content; nothing is added.
        """
        added = 0
        with self.database.transaction():
            for job in jobs:
                values = (job.id, job.priority, job.dump())
                inserted = self.database.execute(
                    "INSERT INTO jobs (id, priority, spec) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING", values
                ).rowcount
                added += inserted
                if not inserted:
                    ((known,),) = self.database.execute("SELECT spec FROM jobs WHERE id = ?", (job.id,))
                    if known != values[2]:
                        raise ArcforgeError(f"job {job.id!r} is already known with other content")
        return added

    def claim(self, count: int) -> list[ExecutionJob]:
        """Returns the next jobs and marks them as running."""
        with self.database.transaction():
            rows = self.database.execute(
                "SELECT id, priority, spec FROM jobs WHERE state = 'queued' ORDER BY priority DESC, number LIMIT ?",
                (count,),
            ).fetchall()
            self.database.executemany(
                "UPDATE jobs SET state = 'running', attempts = attempts + 1 WHERE id = ?", [(row[0],) for row in rows]
            )
        return [ExecutionJob.load(*row) for row in rows]

    def put_back(self, id: str) -> None:
        self.database.execute("UPDATE jobs SET state = 'queued' WHERE id = ? AND state = 'running'", (id,))

    def attempts(self, id: str) -> int:
        """Returns the number of times that a job was started."""
        ((count,),) = self.database.execute("SELECT attempts FROM jobs WHERE id = ?", (id,))
        return int(count)

    def finish(self, id: str, result: ExecResult | None, error: str | None = None) -> bool:
        """Writes a job's result unless it has one; returns whether it was written."""
        values = (None,) * 5 if result is None else (
            str(result.outcome), result.code, result.stdout, result.stderr, result.seconds
        )  # fmt: skip
        with self.database.transaction():
            changed = self.database.execute(
                "UPDATE jobs SET state = 'done' WHERE id = ? AND state != 'done'", (id,)
            ).rowcount
            if changed:
                self.database.execute(
                    "INSERT INTO results (id, outcome, code, stdout, stderr, seconds, error) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (id, *values, error),
                )
        return bool(changed)

    def results(self, after: int = 0) -> Iterator[JobResult]:
        """Yields the next results numbered above `after`, a thousand at most."""
        query = (
            "SELECT r.number, r.id, outcome, code, stdout, stderr, seconds, error, attempts "
            "FROM results r JOIN jobs USING (id) WHERE r.number > ? ORDER BY r.number LIMIT 1000"
        )
        for number, id, outcome, code, stdout, stderr, seconds, error, attempts in self.database.execute(
            query, (after,)
        ):
            result = None if outcome is None else ExecResult(CommandStatus(outcome), code, stdout, stderr, seconds)
            yield JobResult(number, id, result, error, attempts)

    def is_done(self) -> bool:
        """Returns whether every job has its result."""
        ((waiting,),) = self.database.execute("SELECT EXISTS (SELECT 1 FROM jobs WHERE state IN ('queued', 'running'))")
        return not waiting

    def progress(self) -> dict[str, int]:
        """Returns the number of jobs by state."""
        counted = dict(self.database.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
        return {state: counted.get(state, 0) for state in STATES}
