"""``arcforge-env calibrate`` on scripted judges, and the refusal of one that does not agree with people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.judge import CalibrateConfig, JudgeConfig
from arcforge_rl.rewards.judge.judge import GenerativeJudge
from arcforge_rl.rollouts.calibration import run
from support.judges import Answer, Scripted, first_wins, honest, judge_server, write_rubric


def labels(folder: Path) -> str:
    rows = [{"prompt": f"p{n}", "chosen": f"{n + 11}", "rejected": f"{n % 4}"} for n in range(12)]
    rows += [{"prompt": f"q{n}", "chosen": "3 or so", "rejected": "3", "tie": True} for n in range(3)]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "labels.jsonl")


def calibrated(folder: Path, answer: Answer, *options: str) -> tuple[dict[str, Any], str]:
    with judge_server(answer) as (url, _):
        given = [
            f"labels={labels(folder)}", f"judge.rubric={write_rubric(folder)}", "judge.mode=pairwise",
            "hardware=torch_cpu",
            f"+agents.judge.url={url}", "+agents.judge.attempts=1", f"output={folder / 'calibration.json'}", *options,
        ]  # fmt: skip
        found = run(compose_config("env_calibrate", CalibrateConfig, given))
    return {**found.figures, **json.loads((folder / "calibration.json").read_text())}, url


def test_a_judge_that_agrees_is_accepted_and_one_that_does_not_is_refused(tmp_path: Path, capsys: Any) -> None:
    found, url = calibrated(tmp_path, honest)
    assert found["agreement"] == found["kappa"] == 1.0 and found["refused"] == "" and found["position_bias"] == 0.0
    assert found["pairs"] == 15 and found["variance"] == 0.0 and "accepted" in capsys.readouterr().out
    options: dict[str, Any] = {"rubric": write_rubric(tmp_path), "mode": "pairwise"}
    config = JudgeConfig(**options, calibration=str(tmp_path / "calibration.json"))

    def identity(name: str) -> str:
        fields = {"engine": None, "init": None, "url": url, "model": None, "temperature": 1.0}
        return json.dumps({**fields, "max_new_tokens": 256, "thinking": "off"})

    GenerativeJudge(config).connect(Scripted(), identity)
    with pytest.raises(ConfigError, match="is of another judge"):
        GenerativeJudge(config).connect(Scripted(), lambda name: "another model")
    found, url = calibrated(tmp_path, first_wins, "judge.samples=1", "repeats=1")
    assert found["flips"] == 1.0 and found["position_bias"] == 1.0 and found["agreement"] == 3 / 15
    assert found["refused"].startswith("kappa 0.00 is below 0.4; position bias +1.00 is beyond 0.2")
    with pytest.raises(ConfigError, match="says that this judge is no reward: kappa"):
        GenerativeJudge(config).connect(Scripted(), identity)


def test_a_pointwise_judge_and_one_that_fails(tmp_path: Path) -> None:
    found, _ = calibrated(tmp_path, honest, "judge.mode=pointwise")
    assert found["agreement"] == 1.0 and "position_bias" not in found

    def prose(*given: Any) -> str:
        return "great"

    found, _ = calibrated(tmp_path, prose, "judge.mode=pointwise", "limit=2")
    assert found["failures"] == 1.0 and "100% of the verdicts are missing" in found["refused"]


@pytest.mark.parametrize(
    ("row", "refused"),
    [("{", "not JSON"), ({"prompt": "p", "chosen": 3}, "chosen=3 must be a text"), (None, "has no pair")],
)
def test_bad_labels_are_named(tmp_path: Path, row: Any, refused: str) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text("" if row is None else row if isinstance(row, str) else json.dumps(row))
    agents = {"judge": {"url": "http://127.0.0.1:1"}}
    config = CalibrateConfig(labels=str(path), judge=JudgeConfig(rubric=write_rubric(tmp_path)), agents=agents)
    with pytest.raises(DataError, match=refused):
        run(config)


def test_agents_are_those_of_the_judge(tmp_path: Path) -> None:
    for agents, refused in (({}, "names judge"), ({"judge": {"engine": "policy"}}, "must not judge itself")):
        config = CalibrateConfig(
            labels=labels(tmp_path), judge=JudgeConfig(rubric=write_rubric(tmp_path)), agents=agents
        )
        with pytest.raises(ConfigError, match=refused):
            run(config)
