"""The fate of every rollout, and the rollouts of every batch, in one SQLite file with one writer.

Every method is one transaction. After any crash the file has each rollout in one state, and a trainer that starts again
from step s reads the batches s, s + 1, ... that were taken before, with the same rollouts in the same order.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.errors import ArcforgeError
from arcforge_rl.execution.database import Database
from arcforge_rl.orchestrator.group import GroupKey

LEDGER_FILE = "ledger.sqlite"
VERSION = "2"
STATES = ("admitted", "running", "finished", "scored", "batched", "trained", "dropped")
"""``admitted`` rollouts wait for their start, ``finished`` ones for their verdict, ``scored`` ones for a batch."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS groups (
    step INTEGER NOT NULL, number INTEGER NOT NULL,
    task INTEGER NOT NULL, next_task INTEGER NOT NULL,
    rate REAL, settled INTEGER, dropped TEXT, reported INTEGER,
    service TEXT NOT NULL DEFAULT '', owed TEXT, taught INTEGER, refill INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (step, number)
);
CREATE TABLE IF NOT EXISTS batches (step INTEGER PRIMARY KEY, counts TEXT NOT NULL, put_staleness TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rollouts (
    step INTEGER NOT NULL, number INTEGER NOT NULL, place INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'admitted',
    failures INTEGER NOT NULL DEFAULT 0, oldest INTEGER NOT NULL DEFAULT 0,
    reason TEXT, payload BLOB, outcome TEXT, seconds REAL,
    batch INTEGER, copies INTEGER,
    PRIMARY KEY (step, number, place)
);
CREATE INDEX IF NOT EXISTS by_state ON rollouts (state);
CREATE INDEX IF NOT EXISTS by_batch ON rollouts (batch);
"""
FROM_1 = ("service TEXT NOT NULL DEFAULT ''", "owed TEXT", "taught INTEGER", "refill INTEGER NOT NULL DEFAULT 0")
"""Columns of `groups` that files of version 1 lack."""
ONE = "WHERE step = ? AND number = ? AND place = ?"


@dataclass(frozen=True)
class RecordedRollout:
    """A rollout as the file has it; see `SCHEMA`."""

    key: GroupKey
    place: int
    state: str
    failures: int
    oldest: int
    reason: str | None
    payload: bytes | None
    outcome: str | None
    seconds: float | None
    copies: int | None


@dataclass(frozen=True)
class RecordedGroup:
    """A group as the file has it.

    Attributes:
        key: names it.
        service: that has its task; empty for the only one.
        task: number of its task.
        rollouts: by place.
        dropped: why it was left out; None if it was not.
        refill: see `RolloutGroup`.
    """

    key: GroupKey
    service: str
    task: int
    rollouts: Sequence[RecordedRollout]
    dropped: str | None = None
    refill: int = 0


@dataclass(frozen=True)
class SettledGroup:
    """A group all of whose rollouts have ended: the number of its task, its mean reward, and whether it taught."""

    key: GroupKey
    task: int
    rate: float
    taught: bool


class Ledger:
    """See the module.

    Args:
        path: the file.
        run: identity of the run that it belongs to; None takes any, or makes one.

    Attributes:
        run: that identity.

    Raises:
        ArcforgeError: the file belongs to another run, has another schema, is damaged or is in use.
    """

    def __init__(self, path: Path, run: str | None = None) -> None:
        self.path = path
        self._database = Database(path, SCHEMA, "process")
        try:
            self.run = self._identify(run)
        except ArcforgeError:
            self._database.close()
            raise

    def _identify(self, run: str | None) -> str:
        """Returns the identity of the run, and gives a file of version 1 the columns of this version.

        A file with other tables of these names is refused by the statements. One that is refused stays as it is.
        """
        known = dict(self._database.execute("SELECT key, value FROM meta").fetchall())
        if known and known.get("version") not in ("1", VERSION):
            raise ArcforgeError(f"{self.path} has schema {known.get('version')}; this program reads {VERSION}")
        if known and run is not None and known["run"] != run:
            raise ArcforgeError(f"{self.path} belongs to another run ({known['run']}, not {run}): move it away")
        if known.get("version") == "1":
            self._migrate()
        self._groups("0", ())
        if not known:
            run = run or uuid.uuid4().hex
            with self._database.transaction():
                self._database.executemany("INSERT INTO meta VALUES (?, ?)", [("version", VERSION), ("run", run)])
            return run
        return str(known["run"])

    def _migrate(self) -> None:
        with self._database.transaction():
            for column in FROM_1:
                self._database.execute(f"ALTER TABLE groups ADD COLUMN {column}")
            self._database.execute("UPDATE meta SET value = ? WHERE key = 'version'", (VERSION,))

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    # ---- rollouts ----------------------------------------------------------------------------------------------------

    def admit(
        self,
        key: GroupKey,
        size: int,
        task: int,
        next_task: int,
        service: str = "",
        owed: Mapping[str, float] | None = None,
        refill: int = 0,
    ) -> None:
        """A group of `size` rollouts of a task is admitted.

        Args:
            key: names it.
            size: rollouts.
            task: its number among the tasks of the service.
            next_task: with which the curriculum of the service continues.
            service: that has the task.
            refill: see `RolloutGroup`.
            owed: state of the turns of services after this one; see `FairTurns`.
        """
        with self._database.transaction():
            values = (*key, task, next_task, service, json.dumps(dict(owed or {})), refill)
            columns = "step, number, task, next_task, service, owed, refill"
            self._database.execute(f"INSERT INTO groups ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            rows = [(*key, place) for place in range(size)]
            self._database.executemany("INSERT INTO rollouts (step, number, place) VALUES (?, ?, ?)", rows)

    def start(self, key: GroupKey, place: int) -> None:
        """A rollout runs."""
        self._database.execute(f"UPDATE rollouts SET state = 'running', reason = NULL {ONE}", (*key, place))

    def finish(
        self, key: GroupKey, place: int, payload: bytes, oldest: int, seconds: float, outcome: str | None = None
    ) -> None:
        """A rollout was played; it is not scored yet, unless it failed: then `outcome` says how."""
        values = ("finished" if outcome is None else "scored", payload, oldest, seconds, outcome)
        fields = "state = ?, payload = ?, oldest = ?, seconds = ?, outcome = ?"
        self._database.execute(f"UPDATE rollouts SET {fields} {ONE}", (*values, *key, place))

    def score(self, key: GroupKey, place: int, outcome: str) -> None:
        """A rollout has a verdict, or its verifier failed."""
        self._database.execute(f"UPDATE rollouts SET state = 'scored', outcome = ? {ONE}", (outcome, *key, place))

    def again(self, key: GroupKey, place: int, failed: bool = True) -> None:
        """A rollout `failed` or became too old, or made room, and waits to be started again."""
        fields = "state = 'admitted', failures = failures + ?, payload = NULL, outcome = NULL"
        self._database.execute(f"UPDATE rollouts SET {fields} {ONE}", (int(failed), *key, place))

    def halt(self, reason: str) -> None:
        """Running rollouts were cancelled; they are played again when the run continues."""
        statement = "UPDATE rollouts SET state = 'admitted', reason = ? WHERE state = 'running'"
        self._database.execute(statement, (reason,))

    def drop(self, key: GroupKey, reasons: Mapping[int, str], group: str | None) -> None:
        """Rollouts will never be trained on, or a whole group, by reason."""
        with self._database.transaction():
            rows = [(reason, *key, place) for place, reason in reasons.items()]
            self._database.executemany(f"UPDATE rollouts SET state = 'dropped', reason = ? {ONE}", rows)
            if group is not None:
                self._database.execute("UPDATE groups SET dropped = ? WHERE step = ? AND number = ?", (group, *key))

    def settle(self, key: GroupKey, rate: float, taught: bool = True) -> None:
        """All rollouts of a group have ended, with this mean reward; `taught`: not all were equal."""
        order = "(SELECT coalesce(max(settled), 0) + 1 FROM groups)"
        fields = f"rate = ?, taught = ?, settled = coalesce(settled, {order})"
        self._database.execute(f"UPDATE groups SET {fields} WHERE step = ? AND number = ?", (rate, taught, *key))

    # ---- batches -----------------------------------------------------------------------------------------------------

    def batch(
        self,
        step: int,
        groups: Mapping[GroupKey, Iterable[tuple[int, int]]],
        counts: Mapping[str, int] | None = None,
        put_staleness: Sequence[int] = (),
    ) -> None:
        """A batch is taken: its groups with (place, copies) of their rollouts. It reports the groups dropped before,
        and the counts since the batch before.

        Raises:
            ArcforgeError: a rollout is not waiting for a batch, so it would be trained on twice.
        """
        with self._database.transaction():
            for key, rollouts in groups.items():
                for place, copies in rollouts:
                    fields = "state = 'batched', batch = ?, copies = ?"
                    changed = self._database.execute(
                        f"UPDATE rollouts SET {fields} {ONE} AND state = 'scored'", (step, copies, *key, place)
                    ).rowcount
                    if changed != 1:
                        raise ArcforgeError(
                            f"{self.path}: rollout {key.step}/{key.number}/{place} cannot be trained on"
                        )
            values = (step, json.dumps(dict(counts or {})), json.dumps(list(put_staleness)))
            self._database.execute("INSERT INTO batches VALUES (?, ?, ?)", values)
            statement = "UPDATE groups SET reported = ? WHERE dropped IS NOT NULL AND reported IS NULL"
            self._database.execute(statement, (step,))

    def trained(self, step: int) -> None:
        """The update on a batch is done."""
        self._database.execute("UPDATE rollouts SET state = 'trained' WHERE batch = ? AND state = 'batched'", (step,))

    def batches(self) -> int:
        """Returns the number of steps that have a batch here, or were taken before this file began."""
        ((last,),) = self._database.execute("SELECT coalesce(max(batch) + 1, 0) FROM rollouts")
        ((counted,),) = self._database.execute("SELECT coalesce(max(step) + 1, 0) FROM batches")  # some have no rollout
        ((first,),) = self._database.execute("SELECT max(CAST(value AS INTEGER)) FROM meta WHERE key = 'first'")
        return max(int(last), int(counted), first or 0)

    def skip(self, step: int) -> None:
        """The run took its steps up to `step` without this file; rollouts that waited here are dropped."""
        with self._database.transaction():
            self._database.execute("INSERT OR REPLACE INTO meta VALUES ('first', ?)", (str(step),))
            left = "state IN ('admitted', 'running', 'finished', 'scored')"
            self._database.execute(f"UPDATE rollouts SET state = 'dropped', reason = 'skipped' WHERE {left}")
            taken = "(step, number) NOT IN (SELECT step, number FROM rollouts WHERE batch IS NOT NULL)"
            statement = f"UPDATE groups SET dropped = 'skipped', reported = -1 WHERE dropped IS NULL AND {taken}"
            self._database.execute(statement)

    def rewind(self, step: int) -> None:
        """The trainer continues after `step` updates: later batches are not trained yet, and nothing runs.

        Raises:
            ArcforgeError: the file lacks batches that the trainer has trained on.
        """
        if self.batches() < step:
            raise ArcforgeError(
                f"{self.path} has {self.batches()} batches, the checkpoint {step}: it is not this run's, or incomplete"
            )
        with self._database.transaction():
            self._database.execute(
                "UPDATE rollouts SET state = 'batched' WHERE state = 'trained' AND batch >= ?", (step,)
            )
            self._database.execute(
                "UPDATE rollouts SET state = 'trained' WHERE state = 'batched' AND batch < ?", (step,)
            )
            self._database.execute("UPDATE rollouts SET state = 'admitted' WHERE state = 'running'")

    # ---- reading -----------------------------------------------------------------------------------------------------

    def of_batch(self, step: int) -> tuple[list[RecordedGroup], list[RecordedGroup]]:
        """Returns the groups of a batch in order, and the dropped ones that it reports."""
        trained = self._groups("(step, number) IN (SELECT step, number FROM rollouts WHERE batch = ?)", (step,))
        return trained, self._groups("reported = ?", (step,))

    def counted(self, step: int) -> tuple[dict[str, int], list[int]]:
        """Returns the counts and the staleness when put that a batch reports; nothing of files of version 1."""
        rows = self._database.execute("SELECT counts, put_staleness FROM batches WHERE step = ?", (step,)).fetchall()
        return (json.loads(rows[0][0]), json.loads(rows[0][1])) if rows else ({}, [])

    def open_groups(self) -> list[RecordedGroup]:
        """Returns the groups that are neither dropped nor in a batch."""
        taken = "(step, number) NOT IN (SELECT step, number FROM rollouts WHERE batch IS NOT NULL)"
        return self._groups(f"dropped IS NULL AND {taken}", ())

    def unreported(self) -> list[RecordedGroup]:
        """Returns the dropped groups that no batch has reported yet."""
        return self._groups("dropped IS NOT NULL AND reported IS NULL", ())

    def all_groups(self) -> list[RecordedGroup]:
        """Returns everything."""
        return self._groups("1", ())

    def _groups(self, where: str, values: Sequence[object]) -> list[RecordedGroup]:
        names = "service, task, dropped, refill, next_task, rate, settled, reported, owed, taught"
        groups = self._database.execute(f"SELECT step, number, {names} FROM groups WHERE {where} ORDER BY 1, 2", values)
        columns = "place, state, failures, oldest, reason, payload, outcome, seconds, copies"
        found = []
        for step, number, service, task, dropped, refill, *_ in groups.fetchall():
            key = GroupKey(step, number)
            of_group = f"SELECT {columns} FROM rollouts WHERE step = ? AND number = ? ORDER BY 1"
            rows = self._database.execute(of_group, key).fetchall()
            found.append(
                RecordedGroup(key, service, task, [RecordedRollout(key, *row) for row in rows], dropped, refill)
            )
        return found

    def indices(self) -> dict[int, int]:
        """Returns the number of groups admitted for each step."""
        rows = self._database.execute("SELECT step, max(number) + 1 FROM groups GROUP BY step")
        return {int(step): int(count) for step, count in rows.fetchall()}

    def next_task(self, service: str = "") -> int | None:
        """Returns where the curriculum of a service continues; None before any group."""
        ((found,),) = self._database.execute("SELECT max(next_task) FROM groups WHERE service = ?", (service,))
        return None if found is None else int(found)

    def settled(self, service: str = "") -> list[SettledGroup]:
        """Returns the groups of a service that have ended, in that order."""
        names = "step, number, task, rate, taught"
        where = "WHERE settled IS NOT NULL AND service = ? ORDER BY settled"
        rows = self._database.execute(f"SELECT {names} FROM groups {where}", (service,)).fetchall()
        return [
            SettledGroup(GroupKey(step, number), task, rate, bool(taught)) for step, number, task, rate, taught in rows
        ]

    def owed(self) -> dict[str, float]:
        """Returns the state of the turns after the last admission."""
        rows = self._database.execute("SELECT owed FROM groups WHERE owed IS NOT NULL ORDER BY rowid DESC LIMIT 1")
        found = rows.fetchall()
        return dict(json.loads(found[0][0])) if found else {}

    def progress(self) -> dict[str, int]:
        """Returns the number of rollouts by state."""
        counted: Counter[str] = Counter(
            dict(self._database.execute("SELECT state, count(*) FROM rollouts GROUP BY state").fetchall())
        )
        return {state: counted[state] for state in STATES}

    def rewrite(self, key: GroupKey, place: int, outcome: str) -> None:
        """Replaces the verdict of a rollout, whatever its state."""
        self._database.execute(f"UPDATE rollouts SET outcome = ? {ONE}", (outcome, *key, place))
