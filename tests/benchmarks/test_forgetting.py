"""The parts of ``benchmarks/forgetting.py``: every command composes, and its shares are those of the evaluations."""

from __future__ import annotations

import json
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


@pytest.mark.slow(reason="composes nine configurations")
@pytest.mark.parametrize("kind", [nightly_case("chat"), nightly_case("tools"), "general"])
def test_every_command_composes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgetting = module("forgetting")
    recipe = module("_stages").frozen(forgetting.Recipe, tmp_path, forgetting.parser().parse_args([]))
    ran: dict[str, Any] = {}

    def once(place: Path, command: list[str]) -> None:
        job, *overrides = command
        ran[place.name] = compose_config(job, SCHEMAS[job], overrides)
        (place / "run" / "kept").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(forgetting, "once", once)
    with registered(module("_notices").register, "notices"):
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
    assert (f"{kind}-tuned-3" in ran) == (kind == "general")
    tried = ran[f"{kind}-distill-on-3"]
    assert tried.environment.split == "heldout" and tried.episodes == 2 * recipe.tasks


def test_shares_are_of_the_loss_and_the_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forgetting = module("forgetting")
    place = forgetting.Place(tmp_path, "chat", 0)

    def tried(name: str, old: int, new: int) -> None:
        folder = place.of(f"{name}-on") / "run" / "a-day"
        folder.mkdir(parents=True)
        (folder.parents[1] / "done.json").write_text("{}")
        rows = [
            {"domain": domain, "failure": None, "rewards": {"reward": float(n < right)}}
            for domain, right in (("math", old), ("notices", new))
            for n in range(10)
        ]
        failed = {"domain": "math", "failure": {"kind": "sandbox"}, "rewards": {}}
        (folder / "rollouts.jsonl").write_text("\n".join(map(json.dumps, [*rows, failed])))

    tried("expressions", 9, 0)
    tried("new", 4, 10)
    assert forgetting.line_of([place], "distill") == []
    tried("distill", 8, 9)
    place.of("distill").mkdir()
    (place.of("distill") / "done.json").write_text(json.dumps({"processor": 60.0}))
    (found,) = forgetting.line_of([place], "distill")
    assert found["recovered"] == pytest.approx(0.8) and found["kept"] == pytest.approx(0.9)
    forgetting.report(tmp_path, ["chat"], ["distill", "average"], range(3))
    assert "| 90.0%, 40.0%, 80.0% | 0.0%, 100.0%, 90.0% | 80% | 90% | 60 |" in capsys.readouterr().out


def test_the_mean_of_weights_is_one_model(tmp_path: Path) -> None:
    forgetting = module("forgetting")
    folders = [save_policy(tmp_path / name, seed) for seed, name in enumerate(("old", "new"))]
    recipe = module("_stages").frozen(forgetting.Recipe, tmp_path, forgetting.parser().parse_args([]))
    forgetting.average(recipe, forgetting.Place(tmp_path, "chat", 0), *folders, tmp_path / "mean")
    old, new, mean = (load_pretrained(one).state_dict() for one in (*folders, tmp_path / "mean" / "run"))
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (old[name] + new[name]) / 2)
