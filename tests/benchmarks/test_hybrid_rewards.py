"""The parts of ``benchmarks/hybrid_rewards.py``: its rewards and commands, and what it counts in runs."""

from __future__ import annotations

import csv
import json
from importlib import import_module as module
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.config.reward import RewardTrainConfig
from arcforge_core.config.schema import TrainConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.rewards.compose import Comparable, compose
from arcforge_rl.rewards.toml import read_rewards
from support.components import registered


def test_a_reward_is_a_component_or_all_of_them_for_replies_with_the_facts(tmp_path: Path) -> None:
    hybrid = module("hybrid_rewards")
    values = [
        {"gold": 1.0, "facts": 1.0, "liked": -0.2, "style": 0.5},
        {"gold": 0.0, "facts": 0.0, "liked": 0.4, "style": 1.0},
    ]
    rewards: dict[str, list[float]] = {}
    for row in hybrid.ROWS:
        path = tmp_path / f"{row}.toml"
        path.write_text(hybrid.reward_file(row, tmp_path / "scorer", tmp_path / "experts.jsonl"))
        spec = read_rewards(path, ["gold", "facts", "reward"])
        assert spec.combinations["reward"].weights.keys() == set(hybrid.ROWS[row])
        rewards[row] = [compose(spec, one)["reward"] for one in Comparable(spec)(values)]
    assert rewards == {
        "rule": [1.0, 0.0],
        "orm": [0.0, 1.0],
        "style": [0.5, 1.0],
        "hybrid": [0.5, 0.0],
        "editor": [1.0, 0.0],
    }


def test_every_command_of_a_seed_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid, notices = module("hybrid_rewards"), module("_notices")
    ran: dict[str, list[str]] = {}
    monkeypatch.setattr(hybrid, "once", lambda place, command: ran.setdefault(place.name, command))
    sizes = ["--notices", "300", "--pairs", "30", "--experts", "20"]
    recipe = module("_stages").frozen(hybrid.Recipe, tmp_path, hybrid.parser().parse_args(sizes))
    with registered(notices.register, "notices"):
        hybrid.learn(recipe, "rule", 3, tmp_path)
        assert ran.keys() == {"base-3", "rule-3"}  # no reward model is trained for it
        hybrid.learn(recipe, "hybrid", 3, tmp_path)
        assert ran.keys() == {"base-3", "rule-3", "scorer-3", "hybrid-3"}
        tuning = compose_config("train", TrainConfig, ran["base-3"][1:])
        scorer = compose_config("reward", RewardTrainConfig, ran["scorer-3"][2:])
        run = compose_config("rl", RlConfig, ran["hybrid-3"][1:])
    base = f"{tmp_path}/base-3/run"
    assert (tuning.seed, scorer.seed, run.seed) == (3, 3, 3) and scorer.init == run.init == base
    assert scorer.pairs.files == [f"{tmp_path}/data-3/plain.jsonl"]
    assert run.rewards == f"{tmp_path}/hybrid-3/reward.toml" and run.evaluation.temperature == 1.0
    experts = [json.loads(line) for line in (tmp_path / "data-3" / "experts.jsonl").read_text().splitlines()]
    chats = [json.loads(line) for line in (tmp_path / "data-3" / "tuning.jsonl").read_text().splitlines()]
    refused = sum(
        len(notices.words(text)) > notices.MOST_WORDS or notices.WORD in notices.words(text)
        for text in (one["messages"][1]["content"] for one in chats)
    )
    assert len(experts) == 20 and 0.35 < refused / len(chats) < 0.65


def ended(place: Path, gold: tuple[float, float], texts: dict[int, list[tuple[float, str]]]) -> None:
    """Writes a finished run: gold before and after, and by step whether replies have the facts, and the replies."""
    (place / "run").mkdir(parents=True)
    (place / "done.json").write_text(json.dumps({"processor": 60.0}))
    with (place / "run" / "evaluations.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("step", "domain", "reward"), *((step, "all", gold[step > 0]) for step in (0, max(texts)))])
    records: list[dict[str, Any]] = [
        {
            "step": step,
            "failure": None,
            "rewards": {"facts": facts},
            "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}],
        }
        for step, some in texts.items()
        for facts, text in some
    ]
    (place / "run" / "rollouts.jsonl").write_text("\n".join(map(json.dumps, [*records, {"step": 1, "failure": "x"}])))


def test_the_hybrid_is_compared_with_each_component_by_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hybrid = module("hybrid_rewards")
    texts = {
        1: [(1.0, "Certainly, your cups come. We thank you."), (0.0, "Your cups come.")],
        **{step: [(1.0, "Your cups come."), (1.0, "You get cups.")] for step in (2, 3, 4)},
    }
    for row, after in {"rule": 0.6, "orm": 0.7, "style": 0.75, "hybrid": 0.9}.items():
        ended(tmp_path / f"{row}-0", (0.4, after), texts)
    ended(tmp_path / "hybrid-1", (0.4, 0.9), texts)
    found = hybrid.report(tmp_path, list(hybrid.ROWS), range(2))
    assert found["runs"]["hybrid"][0]["gold"] == [(0, 0.4), (4, 0.9)] and found["runs"]["editor"] == {}
    out = capsys.readouterr().out
    assert "| hybrid | 0 | 40.0%, 90.0% | 50% to 100% | 5.0 to 3.0 | 50% to 0% | 60 |" in out
    assert "| 0 | rule +30.0, orm +20.0, style +15.0 | yes |" in out and "\n| 1 |" not in out
    ended(tmp_path / "style-1", (0.4, 0.9), texts)
    for row in ("rule", "orm"):
        ended(tmp_path / f"{row}-1", (0.4, 0.5), texts)
    hybrid.report(tmp_path, list(hybrid.ROWS), range(2))
    assert "| 1 | rule +40.0, orm +40.0, style +0.0 | no |" in capsys.readouterr().out
