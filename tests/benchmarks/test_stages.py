"""Runs of benchmarks that may be stopped: those begun within the minutes, and the count of the others."""

from __future__ import annotations

import json
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module as module
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("options", "worked", "left"),
    [
        (Namespace(table=False, minutes=90.0), ["done", "missing", "another"], None),
        (Namespace(table=False, minutes=0.5), ["done"], "2 runs are left: the same command continues"),
        (Namespace(table=True, minutes=90.0), [], "2 runs are left: the same command continues"),
    ],
)
def test_runs_that_would_not_end_in_time_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: Namespace, worked: list[str], left: str | None
) -> None:
    (tmp_path / "done.json").write_text(json.dumps({"wall": 60.0}))
    seen: list[str] = []
    runs = [
        (lambda name=name: name == "done", lambda name=name: seen.append(name))
        for name in ("done", "missing", "another")
    ]
    module("_stages").run_missing(options, lambda: tmp_path.glob("done.json"), runs)
    assert seen == worked
    assert capsys.readouterr().out.strip() == (left or "")


def test_two_processes_do_a_stage_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages, counted = module("_stages"), tmp_path / "counted"
    script = "import sys, time; open(sys.argv[1], 'a').write('x'); time.sleep(0.5)"
    (tmp_path / "command.py").write_text(script)
    monkeypatch.setattr(stages, "COMMAND", str(tmp_path / "command.py"))
    with ThreadPoolExecutor(2) as pool:
        notes = [pool.submit(stages.once, tmp_path / "stage", [str(counted)]) for _ in range(2)]
    assert counted.read_text() == "x"
    assert notes[0].result() == notes[1].result()


def test_figures_are_written_with_recipe_and_machine(tmp_path: Path) -> None:
    stages, recipe = module("_stages"), module("_environment_rows").Row("slides", (), 1, 2, (), None)
    stages.publish("some", recipe, {"figures": {"gain": 1.5}}, None)
    stages.publish("some", recipe, {"figures": {"gain": 1.5}}, tmp_path / "some.json")
    told = json.loads((tmp_path / "some.json").read_text())
    assert (told["benchmark"], told["figures"]) == ("some", {"gain": 1.5})
    assert told["recipe"]["title"] == "slides" and told["machine"]


@dataclass(frozen=True)
class Steps:
    """A recipe."""

    init: str
    steps: int


def test_a_benchmark_does_what_is_missing_of_each_seed_and_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, worked = module("_stages"), list[tuple[int, int]]()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "done.json").write_text('{"wall": 1.0}')

    def runs(options: Namespace, recipe: Steps, seeds: range) -> list[tuple[Any, Any]]:
        missing = [seed for seed in seeds if not (options.out / str(seed) / "done.json").exists()]
        return [(lambda: False, partial(worked.append, (seed, recipe.steps))) for seed in missing]

    line = ["some", "--out", str(tmp_path), "--first-seed", "1", "--seeds", "3", "--json", str(tmp_path / "some.json")]
    monkeypatch.setattr("sys.argv", line)
    made = stages.options_of("some", "A benchmark.", {"steps": 7})
    stages.run_all("some", made, {}, Steps, runs, lambda options, seeds: {"seeds": list(seeds)})
    assert worked == [(1, 7), (3, 7)]
    told = json.loads((tmp_path / "some.json").read_text())
    assert told["seeds"] == [1, 2, 3] and told["recipe"] == {"init": "demo", "steps": 7}
