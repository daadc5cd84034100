"""The parts of ``benchmarks/environment_rl.py``: demonstrations, commands that compose, gains with their intervals."""

from __future__ import annotations

import json
from importlib import import_module as module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.config.schema import TrainConfig
from arcforge_rl.configs.commands import EnvConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.slides.brief import brief_of
from arcforge_rl.slides.judge import judge

SCHEMAS: dict[str, Any] = {"rl": RlConfig, "env": EnvConfig, "train": TrainConfig}


def test_demonstrated_decks_are_flawed_in_the_share_that_was_asked_for() -> None:
    rows = module("_environment_rows")
    for right in (1.0, 0.4, 0.0):
        records = rows.decks(60, right)
        pairs = [(brief_of(one["messages"][0]["content"]), one["messages"][1]["content"]) for one in records]
        verdicts = [judge(deck, brief) for brief, deck in pairs]
        strict = [verdict.strict_share(2) for verdict in verdicts]
        assert np.mean(strict) == pytest.approx(right, abs=0.12 if 0 < right < 1 else 0.0)
        assert [verdict.score for verdict in verdicts] == strict, "a page without another shape keeps every rule"
    assert len(records[0]["messages"][0]["content"]) < 500, "the rules are not in the prompt"


@pytest.mark.slow(reason="composes six configurations")
@pytest.mark.parametrize("name", ["slides", "terminal"])
def test_every_command_composes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, ran = module("environment_rl"), dict[str, Any]()
    options = benchmark.parser().parse_args(["--level", "2"])
    recipe = module("_stages").frozen(benchmark.Recipe, tmp_path, options)

    def once(place: Path, command: list[str]) -> None:
        job, *overrides = command
        ran[place.name] = compose_config(job, SCHEMAS[job], overrides)
        (place / "run" / "kept").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(benchmark, "once", once)
    monkeypatch.setattr(benchmark, "write_demonstrations", lambda row, count, right, kept: kept.mkdir(parents=True))
    place = benchmark.Place(tmp_path, name)
    for way in benchmark.WAYS:
        benchmark.learn(recipe, place, way, 3)
    tuned = f"{tmp_path}/{name}-tuned/run"
    learning, sampled, again = (ran[f"{name}-{stage}"] for stage in ("rl-3", "sampled-3", "rejection-3"))
    assert (learning.init, sampled.checkpoint, again.init) == (tuned, tuned, tuned)
    assert ran[f"{name}-tuned"].data.folders == [f"{tmp_path}/{name}-data/kept"]
    assert again.data.folders == [f"{tmp_path}/{name}-sampled-3/run/kept"]
    assert {one.environment.split for one in (learning, sampled)} == {"train"}
    assert {one.environment.seed for one in (learning, sampled)} == {4}, "others than those that were demonstrated"
    tried = [ran[f"{name}-{stage}-on"] for stage in ("tuned", "rl-3", "rejection-3")]
    assert all(one.environment == tried[0].environment for one in tried)
    assert tried[0].environment.split == "heldout" and getattr(tried[0].environment, "level", 2) == 2
    assert tried[1].checkpoint == f"{tmp_path}/{name}-rl-3/run"


def test_intervals_hold_the_gain() -> None:
    gains, draw = module("environment_rl").gains, np.random.default_rng(1)
    before = (draw.random(100) < 0.4).astype(float)
    after = [(draw.random(100) < 0.8).astype(float) for _ in range(3)]
    found = gains(before, after)
    assert found["gain"] == pytest.approx(np.mean(after) - before.mean())
    for name in ("interval", "interval_of_seeds"):
        low, high = found[name]
        assert 0 < low < found["gain"] < high, name
    assert 0.1 < found["interval"][1] - found["interval"][0] < 0.4
    low, high = gains(before, [before, 1 - before])["interval_of_seeds"]
    assert low < 0 < high
    gap = gains([0.0, 1.0, float("nan")], [[1.0, 1.0, 1.0]])
    assert gap["gain"] == 0.5 and "interval_of_seeds" not in gap, "a task that failed is left out"


def test_the_table_has_finished_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = module("environment_rl")
    place = benchmark.Place(tmp_path, "slides")

    def finished(stage: str, strict: list[float]) -> None:
        for folder in (place.of(stage), place.of(f"{stage}-on")):
            (folder / "run").mkdir(parents=True)
            (folder / "done.json").write_text(json.dumps({"processor": 60.0}))
        rows = [
            {"rollout": f"task#{n}", "step": n % 2, "failure": None, "rewards": {"reward": 0.5, "strict_16_9": one}}
            for n, one in enumerate(strict)
        ]
        for folder in (place.of(stage) / "run", place.of(f"{stage}-on") / "run"):
            (folder / "rollouts.jsonl").write_text("\n".join(map(json.dumps, reversed(rows))))

    finished("tuned", [0.0, 0.5, 1.0, 0.5])
    assert benchmark.report(tmp_path, ["slides", "terminal"], ["rl"], range(2)) == {"figures": {}}
    for seed in range(2):
        finished(f"rl-{seed}", [1.0, 1.0, 1.0, 0.0])
    for stage in ("sampled-0", "rejection-0"):
        finished(stage, [0.5, 0.5, 1.0, 1.0])
    told = benchmark.report(tmp_path, ["slides", "terminal"], ["rl", "rejection"], range(2))["figures"]["slides"]
    assert place.figures("tuned", "strict_16_9") == [0.0, 0.5, 1.0, 0.5]
    assert told["rl"]["strict_16_9"]["gain"] == 0.25 and told["rl"]["reward"]["gain"] == 0.0
    assert told["rl"]["strict_16_9"]["curves"] == [[1.0, 0.5]] * 2
    assert told["rejection"]["strict_16_9"]["processor"] == 120.0, "of both stages"
    printed = capsys.readouterr().out
    assert "| slides | strict_16_9 | RL | 50.0% | 75.0%, 75.0% | +25.0 |" in printed
    assert "| +25.0 to +25.0 | 60 |" in printed
