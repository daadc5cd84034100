"""Ledgers of version 1 are read: migrated once, with all rows, and whole wherever the migration is killed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.errors import ArcforgeError
from arcforge_rl.execution.database import Database
from arcforge_rl.orchestrator.group import GroupKey
from arcforge_rl.orchestrator.ledger import Ledger
from support.ledger_run import STEPS, train

from .test_ledger import SYNCHRONOUS, checked

GROUPS = "step, number, task, next_task, rate, settled, dropped, reported"
VERSION_1 = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS groups (
    step INTEGER NOT NULL, number INTEGER NOT NULL,
    task INTEGER NOT NULL, next_task INTEGER NOT NULL,
    rate REAL, settled INTEGER, dropped TEXT, reported INTEGER,
    PRIMARY KEY (step, number)
);
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
"""The schema as it was."""
ROLLOUTS = "step, number, place, state, failures, oldest, reason, payload, outcome, seconds, batch, copies"


def as_version_1(path: Path) -> None:
    """Rewrites a file of this version as version 1 would have written it."""
    with sqlite3.connect(path) as new:
        rows = {
            "groups": new.execute(f"SELECT {GROUPS} FROM groups").fetchall(),
            "rollouts": new.execute(f"SELECT {ROLLOUTS} FROM rollouts").fetchall(),
            "meta": [(key, "1" if key == "version" else value) for key, value in new.execute("SELECT * FROM meta")],
        }
    new.close()
    for name in (path, *path.parent.glob(f"{path.name}-*")):
        name.unlink()
    with sqlite3.connect(path) as made:
        made.executescript(f"PRAGMA journal_mode=WAL; {VERSION_1}")
        for table, of in rows.items():
            made.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(of[0]))})", of)
    made.close()


def content(path: Path) -> tuple[str, list[Any], list[Any], int]:
    """Returns the version of a file, its rows of version 1, and its number of columns of groups."""
    database = sqlite3.connect(path)
    ((version,),) = database.execute("SELECT value FROM meta WHERE key = 'version'")
    groups = database.execute(f"SELECT {GROUPS} FROM groups ORDER BY 1, 2").fetchall()
    rollouts = database.execute(f"SELECT {ROLLOUTS} FROM rollouts ORDER BY 1, 2, 3").fetchall()
    columns = len(database.execute("PRAGMA table_info(groups)").fetchall())
    database.close()
    return version, groups, rollouts, columns


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with half a run and a ledger of version 1."""
    folder = tmp_path_factory.mktemp("old")
    train(folder, SYNCHRONOUS, STEPS // 2)
    as_version_1(folder / "ledger.sqlite")
    return folder


def copy(old: Path, folder: Path) -> Path:
    shutil.copytree(old, folder, dirs_exist_ok=True)
    return folder / "ledger.sqlite"


def test_a_file_of_version_1_is_migrated_once_and_keeps_its_rows(old: Path, tmp_path: Path) -> None:
    path = copy(old, tmp_path)
    before = content(path)
    assert before[0] == "1" and before[3] == 8 and len(before[1]) > 3 and any(row[3] == "trained" for row in before[2])
    ledger = Ledger(path, "run")
    groups = ledger.all_groups()
    assert {(group.service, group.refill) for group in groups} == {("", 0)} and len(groups) == len(before[1])
    assert ledger.counted(0) == ({}, []) and ledger.next_task() == max(row[3] for row in before[1])
    ledger.admit(GroupKey(9, 0), 1, 7, 8, "maths", {"maths": 1.0}, refill=1)
    ledger.close()
    after = content(path)
    assert after[0] == "2" and after[3] == 12
    assert after[1][:-1] == before[1] and after[2][:-1] == before[2]
    again = Ledger(path, "run")
    assert again.all_groups()[-1].service == "maths" and again.all_groups()[-1].refill == 1, "not migrated again"
    again.close()


def test_a_run_resumed_from_version_1_ends_as_an_undisturbed_one(old: Path, tmp_path: Path) -> None:
    copy(old, tmp_path / "old")
    whole = tmp_path / "whole"
    whole.mkdir()
    assert train(tmp_path / "old", SYNCHRONOUS) == train(whole, SYNCHRONOUS)
    checked(tmp_path / "old")


@pytest.mark.parametrize("number", range(1, 8))
def test_a_migration_that_is_killed_leaves_one_version_or_the_other(old: Path, tmp_path: Path, number: int) -> None:
    """BEGIN, four columns, the version and COMMIT: killed before each, and after the last."""
    path = copy(old, tmp_path)
    before = content(path)

    def work(after: bool) -> None:
        execute, count = Database.execute, 0

        def watched(database: Database, statement: str, values: Any = ()) -> Any:
            nonlocal count
            count += statement.startswith(("BEGIN", "ALTER", "UPDATE meta", "COMMIT"))
            if count == number and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = execute(database, statement, values)
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        Database.execute = watched  # type: ignore[method-assign]
        Ledger(path, "run")

    for after in (False, True) if number == 7 else (False,):
        child = multiprocessing.get_context("fork").Process(target=work, args=(after,))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        found = content(path)
        assert found[1:3] == before[1:3] and (found[0], found[3]) == (("2", 12) if after else ("1", 8))
    ledger = Ledger(path, "run")
    assert len(ledger.all_groups()) == len(before[1])
    ledger.close()


def test_a_file_that_is_refused_stays_as_it_is(old: Path, tmp_path: Path) -> None:
    path = copy(old, tmp_path)
    with pytest.raises(ArcforgeError, match=r"belongs to another run \(run, not mine\): move it away") as found:
        Ledger(path, "mine")
    assert "\n" not in str(found.value) and content(path)[0] == "1" and content(path)[3] == 8
    database = sqlite3.connect(path)
    database.execute("UPDATE meta SET value = '3' WHERE key = 'version'")
    database.commit()
    database.execute("ALTER TABLE groups DROP COLUMN task")
    database.close()
    with pytest.raises(ArcforgeError, match="has schema 3; this program reads 2"):
        Ledger(path, "run")
