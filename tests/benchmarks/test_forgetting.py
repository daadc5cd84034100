"""The parts of ``benchmarks/forgetting.py``: every command composes, and its shares are those of the evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import import_module as module
from pathlib import Path
from typing import Any

import pytest
import torch

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.config.compose import compose_config
from arcforge_core.config.schema import TrainConfig
from arcforge_rl.configs.commands import EnvConfig, SampleConfig
from arcforge_rl.configs.learning import RlConfig
from support.components import registered
from support.marks import nightly_case
from support.policies import save_policy

SCHEMAS: dict[str, Any] = {"rl": RlConfig, "env": EnvConfig, "train": TrainConfig, "sample": SampleConfig}


Ran = dict[str, Any]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ran]:
    """The configurations of the commands that a test would run, by the names of their folders."""
    found: Ran = {}

    def once(place: Path, command: list[str]) -> None:
        job, *overrides = command
        if place.name not in found:
            found[place.name] = compose_config(job, SCHEMAS[job], overrides)
        (place / "run" / "kept").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(module("forgetting"), "once", once)
    with registered(module("_notices").register, "notices"):
        yield found


@pytest.mark.slow(reason="composes nine configurations")
@pytest.mark.parametrize("kind", [nightly_case("chat"), nightly_case("tools"), "general"])
def test_every_command_composes(kind: str, tmp_path: Path, ran: Ran) -> None:
    forgetting = module("forgetting")
    recipe = module("_stages").frozen(forgetting.Recipe, tmp_path, forgetting.parser().parse_args([]))
    for row in ("distill", "replay", "rl_kl", "rl_both"):
        forgetting.learn(recipe, forgetting.Place(tmp_path, kind, 3), row)
    new = f"{tmp_path}/{kind}-new-3/run"
    distill = ran[f"{kind}-distill-3"]
    assert {name: one.init for name, one in distill.teachers.items()} == {
        "expressions": f"{tmp_path}/expressions-3/run",
        "new": new,
    }
    assert distill.init == new and distill.environment.parts.keys() == {"expressions", "new"}
    assert distill.environment.thinking == {"expressions": "on"} and distill.rollout.group_size == 1
    assert ran[f"{kind}-replay-3"].data.folders == [f"{tmp_path}/{kind}-{n}-3/run/kept" for n in ("sampled", "data")]
    assert (ran[f"{kind}-rl_kl-3"].algorithm.kl, ran[f"{kind}-rl_both-3"].algorithm.kl) == (recipe.kl, 0.0)
    assert [ran[f"{kind}-{row}-3"].monitor.idle_steps for row in ("rl_kl", "rl_both", "distill")] == [0, 0, 20]
    assert (f"{kind}-tuned-3" in ran) == (kind == "general")
    tried = ran[f"{kind}-distill-on-3"]
    assert tried.environment.split == "heldout" and tried.episodes == 2 * recipe.tasks


@pytest.mark.slow(reason="composes eleven configurations")
def test_skills_of_several_lengths_have_a_stage_and_a_teacher_each(tmp_path: Path, ran: Ran) -> None:
    forgetting = module("forgetting")
    recipe = module("_stages").frozen(forgetting.Recipe, tmp_path, forgetting.parser().parse_args([]))
    for row in ("distill", "tokens"):
        forgetting.learn(recipe, forgetting.Place(tmp_path, "lengths", 3), row)
    skills = {name: f"{tmp_path}/{name}-3/run" for name in ("expressions", "lengths-sums", "lengths-new")}
    old, sums, new = skills.values()
    assert (ran["lengths-sums-3"].init, ran["lengths-new-3"].init) == (old, sums)
    assert ran["lengths-sums-data-3"].environment.parts.keys() == {"sums"}
    assert ran["lengths-sums-data-3"].episodes == 3 * ran["lengths-data-3"].episodes
    for row, weights in (("distill", ("teachers", "sequence")), ("tokens", ("prompts", "token"))):
        config = ran[f"lengths-{row}-3"]
        assert config.init == new
        assert {name: one.init for name, one in config.teachers.items()} == {
            "expressions": old,
            "sums": sums,
            "new": new,
        }
        assert config.environment.parts.keys() == config.teachers.keys()
        assert (config.algorithm.balance, config.algorithm.mean) == weights
        assert ran[f"lengths-{row}-on-3"].episodes == 3 * recipe.tasks
    assert {f"lengths-{stage}-on-3" for stage in ("expressions", "sums", "new")} <= ran.keys()


def test_rows_are_those_of_the_kinds() -> None:
    rows_by_kind = module("forgetting").rows_by_kind
    assert rows_by_kind(["lengths"], None) == {"lengths": ["distill", "tokens"]}
    assert rows_by_kind(["chat", "lengths"], ["distill", "replay"]) == {
        "chat": ["distill", "replay"],
        "lengths": ["distill"],
    }
    with pytest.raises(SystemExit, match="--rows replay: no row of --kinds lengths: lengths has distill, tokens"):
        rows_by_kind(["lengths"], ["distill", "replay"])


def tried(place: Any, name: str, **right: int) -> None:
    """Writes an evaluation of ten tasks of each skill; a reply to one of expressions has 60 tokens, to others 4."""
    folder = place.of(f"{name}-on") / "run" / "a-day"
    folder.mkdir(parents=True)
    (folder.parents[1] / "done.json").write_text("{}")
    rows: list[dict[str, Any]] = [
        {
            "task": f"{skill}/task/{n}",
            "failure": None,
            "rewards": {"reward": float(n < count)},
            "length": 60 if skill == "expressions" else 4,
        }
        for skill, count in right.items()
        for n in range(10)
    ]
    failed = {"task": "expressions/task/10", "failure": {"kind": "sandbox"}, "rewards": {}}
    (folder / "rollouts.jsonl").write_text("\n".join(map(json.dumps, [*rows, failed])))


def ended(place: Any, row: str) -> Path:
    """Writes the note about a row, and returns its folder."""
    run: Path = place.of(row) / "run"
    run.mkdir(parents=True)
    (run.parent / "done.json").write_text(json.dumps({"processor": 60.0}))
    return run


def written(path: Path, teachers: Sequence[str], *steps: tuple[float, ...]) -> None:
    """Writes metrics of steps: each teacher's tokens and weight."""
    names = [f"teacher_{one}_{figure}" for one in teachers for figure in ("tokens", "weight")]
    path.write_text("\n".join(",".join(map(str, line)) for line in [names, *steps]))


def test_shares_are_of_the_loss_and_the_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forgetting, figures = module("forgetting"), module("_forgetting_figures")
    place = forgetting.Place(tmp_path, "chat", 0)
    tried(place, "expressions", expressions=9, new=0)
    tried(place, "new", expressions=4, new=10)
    assert figures.seeds_of([place], "distill") == []
    tried(place, "distill", expressions=8, new=9)
    written(ended(place, "distill") / "metrics.csv", ("expressions", "new"), (60, 0.5, 8, 0.5))
    (found,) = figures.seeds_of([place], "distill")
    assert found["old"]["expressions"]["recovered"] == pytest.approx(0.8) and found["kept"] == pytest.approx(0.9)
    forgetting.report(tmp_path, {"chat": ["distill", "average"]}, range(3))
    out = capsys.readouterr().out
    assert "| expressions: 90.0%, 40.0%, 80.0% | 0.0%, 100.0%, 90.0% | 80% | 90% | 60 |" in out
    assert "longest by shortest" not in out


def test_lengths_have_a_table_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forgetting = module("forgetting")
    place = forgetting.Place(tmp_path, "lengths", 0)
    tried(place, "expressions", expressions=8, sums=5, new=0)
    tried(place, "sums", expressions=6, sums=10, new=2)
    tried(place, "new", expressions=0, sums=0, new=10)
    tried(place, "tokens", expressions=8, sums=3, new=10)
    steps = [(600, 0.9, 40, 0.06, 40, 0.04), (600, 0.8, 60, 0.12, 40, 0.08)]
    written(ended(place, "tokens") / "metrics.csv", ("expressions", "sums", "new"), *steps)
    found = forgetting.report(tmp_path, {"lengths": ["distill", "tokens"]}, range(3))
    (seed,) = found["rows"]["lengths"]["tokens"]
    assert seed["old"]["sums"]["best"] == 1.0 and seed["new_before"] == 0.2
    out = capsys.readouterr().out
    assert "| expressions: 80.0%, 0.0%, 80.0% | 20.0%, 100.0%, 100.0% | 100% | 100% | 60 |" in out
    assert "| sums: 100.0%, 0.0%, 30.0% | 20.0%, 100.0%, 100.0% | 30% | 100% | 60 |" in out
    told = "| expressions 60.0, sums 4.0 | 15.0 | expressions 1,200, sums 100, new 80 "
    assert told + "| expressions 85.0%, sums 9.0%, new 6.0% |" in out


def test_the_mean_of_weights_is_one_model(tmp_path: Path) -> None:
    forgetting = module("forgetting")
    folders = [save_policy(tmp_path / name, seed) for seed, name in enumerate(("old", "new"))]
    recipe = module("_stages").frozen(forgetting.Recipe, tmp_path, forgetting.parser().parse_args([]))
    models = dict(zip(("expressions", "new"), folders, strict=True))
    forgetting.average(recipe, forgetting.Place(tmp_path, "chat", 0), "average", models, tmp_path / "mean")
    old, new, mean = (load_pretrained(one).state_dict() for one in (*folders, tmp_path / "mean" / "run"))
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (old[name] + new[name]) / 2)
