"""Whenever a run is killed, its ledger is whole: finished rollouts are trained on once, or dropped with a reason."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sqlite3
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.errors import ArcforgeError
from arcforge_rl.orchestrator.group import GroupKey
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.orchestrator.rules import Rules
from support.ledger_run import STEPS, in_child, train

SYNCHRONOUS = Rules(threshold=2, group_size=3, eta=0.0, max_staleness=0, concurrency=4, retries=1)
ASYNCHRONOUS = Rules(threshold=2, group_size=3, eta=2.0, max_staleness=2, concurrency=5, retries=1)

EVERY = pytest.mark.nightly(reason="a process for each of two hundred commits")


def checked(folder: Path) -> Counter[str]:
    """Returns the number of rollouts by state after a finished run; each has one, and a reason if it is dropped."""
    ledger = Ledger(folder / "ledger.sqlite")
    groups = ledger.all_groups()
    ledger.close()
    states: Counter[str] = Counter()
    trained = []
    for group in groups:
        for rollout in group.rollouts:
            states[rollout.state] += 1
            # one that was cut off waits with a reason
            reasons = {"dropped": rollout.reason is not None, "admitted": True}
            assert reasons.get(rollout.state, rollout.reason is None)
            if rollout.state == "trained":
                assert rollout.payload is not None and rollout.outcome is not None and rollout.copies is not None
                trained.append((rollout.key, rollout.place))
            assert rollout.state != "batched", "all batches were trained"
    rows = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    by_step: dict[int, set[str]] = {}
    for step, batch in rows:
        by_step.setdefault(step, set()).add(batch)
    assert set(by_step) == set(range(STEPS)) and all(len(batches) == 1 for batches in by_step.values()), "not identical"
    names = [one[0] for (batch,) in by_step.values() for group in json.loads(batch) for one in group]
    assert len(set(names)) == len(names) == len(trained), "trained on twice, or not recorded"
    return states


@pytest.mark.slow(reason="kills and resumes a run at each of its commits")
@pytest.mark.parametrize(
    ("rules", "every"),
    [
        (SYNCHRONOUS, 17),
        (ASYNCHRONOUS, 17),
        pytest.param(SYNCHRONOUS, 1, marks=EVERY),
        pytest.param(ASYNCHRONOUS, 1, marks=EVERY),
    ],
    ids=["staleness 0", "staleness 2", "staleness 0, all", "staleness 2, all"],
)
def test_a_run_killed_at_any_commit_loses_nothing(tmp_path: Path, rules: Rules, every: int) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    code, commits = in_child(whole, rules)
    assert code == 0 and commits > 60
    states = checked(whole)
    assert states["trained"] > 0 and states["dropped"] > 0
    last = json.loads((whole / "checkpoint.json").read_text())
    cuts = [
        (n, before) for n in range(1, commits + 1, every) for before in (False, True) if every == 1 or n % 2 != before
    ]
    for number, before in cuts:
        folder = tmp_path / "cut"
        folder.mkdir()
        code, _ = in_child(folder, rules, kill=number, before=before)
        killed = code == -9
        assert killed or (rules.eta and code == 0), "the order of events, and so their number, depends on the machine"
        again, _ = in_child(folder, rules)
        assert again == 0, f"cannot resume after commit {number}"
        checked(folder)
        if rules.eta == 0:
            assert json.loads((folder / "checkpoint.json").read_text()) == last, f"other weights after commit {number}"
        shutil.rmtree(folder)


def test_the_runs_of_this_file_have_repaired_and_dropped_groups(tmp_path: Path) -> None:
    train(tmp_path, SYNCHRONOUS)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    rollouts = [rollout for group in ledger.all_groups() for rollout in group.rollouts]
    reasons = Counter(rollout.reason for rollout in rollouts)
    assert reasons["engine"] and (reasons["all_right"] or reasons["all_wrong"])
    assert {rollout.copies for rollout in rollouts if rollout.state == "trained"} == {1, 2}
    assert ledger.progress()["trained"] == sum(rollout.state == "trained" for rollout in rollouts)
    ledger.close()


def test_files_of_other_runs_other_schemas_and_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path, "one")
    with pytest.raises(ArcforgeError, match="another process uses this file"):
        Ledger(path, "one")
    first.close()
    with pytest.raises(ArcforgeError, match="belongs to another run \\(one, not two\\): move it away"):
        Ledger(path, "two")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = '7' WHERE key = 'version'")
    with pytest.raises(ArcforgeError, match="has schema 7; this program reads 2"):
        Ledger(path, "one")
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE groups (name TEXT)")
    with pytest.raises(ArcforgeError, match=r"other\.sqlite cannot be used: no such column"):
        Ledger(other)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ArcforgeError, match=r"ledger\.sqlite is damaged .*: move it away"):
        Ledger(path)
    path.unlink()
    train(tmp_path, ASYNCHRONOUS)
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(ArcforgeError, match=r"ledger\.sqlite is damaged"):
        Ledger(path)


def test_a_full_disk_ends_the_run_with_its_name_and_what_was_written_stays(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.admit(GroupKey(0, 0), 2, 0, 1)
    pages = ledger._database.execute("PRAGMA page_count").fetchone()[0]
    ledger._database.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(ArcforgeError, match=r"ledger\.sqlite: the disk is full; make room and resume"):
        ledger.finish(GroupKey(0, 0), 0, bytes(range(256)) * 4096, 0, 1.0)
    assert ledger.progress()["admitted"] == 2
    ledger.close()


def test_a_batch_cannot_take_a_rollout_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    key = GroupKey(0, 0)
    ledger.admit(key, 1, 0, 1)
    ledger.finish(key, 0, b"", 0, 1.0)
    ledger.score(key, 0, "{}")
    ledger.batch(0, {key: [(0, 1)]})
    with pytest.raises(ArcforgeError, match="rollout 0/0/0 cannot be trained on"):
        ledger.batch(1, {key: [(0, 1)]})
    assert ledger.batches() == 1
    with pytest.raises(ArcforgeError, match="has 1 batches, the checkpoint 3"):
        ledger.rewind(3)
    ledger.close()


@pytest.mark.parametrize(("patience", "away", "ends"), [(20, 30, False), (20, 10**6, True), (0, 300, False)])
def test_failures_in_a_row_end_a_run_that_has_worked_after_its_idle_steps(
    tmp_path: Path, patience: int, away: int, ends: bool
) -> None:
    """13 in a row end a run in which nothing has worked yet; here 121 do, or none with idle_steps=0."""
    from support import ledger_run

    asked = itertools.count()

    class Away(ledger_run.SeedSays):
        async def ask(self, *given: Any) -> GenerationOutput:
            if 8 <= next(asked) < 8 + away:
                raise OSError("the engine is away")
            return await super().ask(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_run, "SeedSays", Away)
        work = asyncio.to_thread(train, tmp_path, SYNCHRONOUS, patience=patience)
        with pytest.raises(ArcforgeError, match=r"all 12\d rollouts failed") if ends else nullcontext():
            asyncio.run(asyncio.wait_for(work, 60))
    assert ends or checked(tmp_path)["trained"] > 0


def test_nothing_that_can_be_learnt_ends_the_run(tmp_path: Path) -> None:
    """All rollouts of all groups fail: the trainer gets the error, not an endless wait."""
    from support import ledger_run

    class Broken(ledger_run.SeedSays):
        async def ask(self, *_: object) -> None:  # type: ignore[override]
            raise OSError("no such engine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_run, "SeedSays", Broken)
        with pytest.raises(ArcforgeError, match=r"all \d+ rollouts failed; the first: engine: OSError: no such engine"):
            asyncio.run(asyncio.wait_for(asyncio.to_thread(train, tmp_path, SYNCHRONOUS), 30))
