"""Alarms of evaluations: warn, stop, and roll back to the weights that were the best on held-out tasks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.files.find import find_checkpoint
from arcforge_rl.configs.learning import MonitorConfig
from arcforge_rl.environments.canaries import Canary, read_canaries
from arcforge_rl.trainer.monitor import Monitor
from arcforge_rl.trainer.run import check_alone, run


def canaries(folder: Path, *records: Any) -> str:
    (folder / "canaries.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder / "canaries.jsonl")


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_gold_and_canaries_alarm_once_each_time() -> None:
    monitor = Monitor(MonitorConfig(gold_drop=0.1, canary_failures=0.25), 1.0)
    found = [
        [warned.figure for warned in monitor.measured(step, gold, best, failing)]
        for step, (gold, best, failing) in enumerate(
            [(0.5, 0.5, 0.0), (0.45, 0.5, 0.25), (0.3, 0.5, 0.5), (0.2, 0.5, 0.5), (0.5, 0.5, None), (0.3, 0.5, None)]
        )
    ]
    assert found == [[], [], ["gold", "canaries"], [], [], ["gold"]]


def test_what_replies_look_like_alarms() -> None:
    limits = {"length_high": 2.0, "repetition": 0.3, "refusals": 0.2, "malformed": 0.1}
    monitor = Monitor(MonitorConfig(window=1, **limits), 1.0)  # type: ignore[arg-type]
    calm = {"length": 10.0, "repetition": 0.3, "refusals": 0.2, "malformed": 0.1}
    assert monitor.add(1, calm) == []
    found = monitor.add(2, {"length": 21.0, "repetition": 0.31, "refusals": 0.21, "malformed": 0.11})
    assert [warned.figure for warned in found] == ["length", "repetition", "refusals", "malformed"]
    assert [warned.limit for warned in found] == [20.0, 0.3, 0.2, 0.1]


@pytest.mark.parametrize("action", ["warn", "stop", "rollback"])
def test_an_alarm_is_answered(small_run: Compose, tmp_path: Path, policy: Path, action: str) -> None:
    path = canaries(tmp_path, {"prompt": "say it", "must": "what it never says"})
    options = (f"monitor.canaries={path}", f"monitor.action={action}", "trainer.eval_every=5", "trainer.max_steps=2")
    found = run(small_run(*options, "rollout.drop_equal=false", "optimizer.lr=0.05", "schedule.warmup=0.0"))
    assert found.figures["steps"] == (2 if action == "warn" else 1)
    warnings = rows_of(found.dir / "warnings.csv")
    assert ("0", "canaries") in [(row["step"], row["figure"]) for row in warnings]
    begun, ended = load_pretrained(policy).state_dict(), load_pretrained(find_checkpoint(found.dir)).state_dict()
    same = all(torch.equal(begun[name], ended[name]) for name in begun)
    assert same == (action == "rollback")
    if action == "rollback":
        rows = [row for row in rows_of(found.dir / "evaluations.csv") if row["domain"] == "all"]
        assert [row["step"] for row in rows] == ["0", "1"] and rows[0]["reward"] == rows[1]["reward"]
        assert json.loads((found.dir / "gold.json").read_text())["step"] == 0


def test_impossible_answers_are_refused(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"needs evaluation\.tasks"):
        small_run("monitor.action=rollback", "evaluation.tasks=0")
    with pytest.raises(ConfigError, match=r"needs evaluation\.engine=shared"):
        small_run("monitor.action=rollback", "evaluation.engine=own", "engine=paged")
    with pytest.raises(ConfigError, match=r"monitor\.action='restart'"):
        MonitorConfig(action="restart")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for option in ("monitor.action=stop", "monitor.canaries=x"):
        with pytest.raises(ConfigError, match="in several processes"):
            check_alone(small_run(option))


@pytest.mark.parametrize(
    ("record", "refused"),
    [
        ({"prompt": "p"}, "has neither must nor must_not"),
        ({"prompt": "p", "must": "("}, "is no regular expression"),
        ({"must": "x"}, "must have the texts"),
        ({"prompt": "p", "must": 3}, "must have the texts"),
    ],
)
def test_bad_canaries_are_named(tmp_path: Path, record: Any, refused: str) -> None:
    with pytest.raises(DataError, match=refused):
        read_canaries(Path(canaries(tmp_path, record)))


def test_a_canary_sings() -> None:
    canary = Canary("p", must=r"\bno\b", must_not="yes")
    assert [canary.sings(text) for text in ("no", "no yes", "yes", "now")] == [True, False, False, False]
