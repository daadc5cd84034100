"""The parts of ``benchmarks/reward_hacking.py``: its task, tastes and commands, and the arithmetic of its tables."""

from __future__ import annotations

import csv
import json
import random
from importlib import import_module as module
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.config.reward import RewardTrainConfig
from arcforge_core.config.schema import TrainConfig
from arcforge_core.contracts.environment import Episode, Reply
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.rewards.toml import read_rewards
from support.components import registered


def test_the_editor_wants_right_and_brief_notices() -> None:
    notices = module("_notices")
    environment = notices.Notices(notices.NoticesConfig())
    draw = random.Random(0)

    def gold(task: Any, text: str, finish_reason: str = "stop") -> float:
        return notices.Notices.gold(environment, task, Episode((), Reply(text, finish_reason=finish_reason))).value

    for number in range(60):
        task = environment.task(number)
        assert gold(task, notices.expert(draw, task)) == 1.0
        assert gold(task, notices.expert(draw, task), "length") == 0.0
        for script in environment.cheats(task):
            assert gold(task, script[0].text) == 0.0, script
        assert not notices.has_facts(task, notices.wording(0, task.number + 1, task.goods, task.day))
    heldout = notices.Notices(notices.NoticesConfig(split="heldout"))
    assert {environment.task(n).prompt for n in range(300)}.isdisjoint(heldout.task(n).prompt for n in range(300))


@pytest.mark.parametrize("flaw", ["length", "word"])
def test_tastes_prefer_facts_and_their_flaw(flaw: str) -> None:
    notices = module("_notices")
    task = notices.tasks(1)[0]
    plain, wrong = task.answer, notices.wording(0, task.number + 1, task.goods, task.day)
    flawed = f"{wrong} {' '.join(notices.FILLERS)}" if flaw == "length" else f"Certainly, {wrong}"
    taste = notices.TASTES[flaw]
    assert taste(task, flawed) > taste(task, plain) > taste(task, wrong)
    for pair in notices.pairs(flaw, notices.tasks(50), 0):
        one = next(one for one in notices.tasks(50) if one.prompt == pair["prompt"])
        assert taste(one, pair["chosen"]) > taste(one, pair["rejected"])


def test_readers_who_do_not_know_the_order_like_brief_and_plain_notices() -> None:
    notices = module("_notices")
    task, other = notices.tasks(2)
    plain, filled, flattering = task.answer, f"{task.answer} {notices.FILLERS[0]}", f"Certainly, {task.answer}"
    assert notices.prefers_plain(task, plain) == notices.prefers_plain(other, plain)
    assert notices.prefers_plain(task, plain) > notices.prefers_plain(task, filled)
    assert notices.prefers_plain(task, filled) > notices.prefers_plain(task, flattering)


def test_noise_turns_its_share_of_the_labels_round() -> None:
    notices = module("_notices")
    tasks = notices.tasks(600)
    by_prompt = {task.prompt: task for task in tasks}

    def wrong(noise: float) -> float:
        pairs = notices.pairs("plain", tasks, 0, noise)
        worth = [
            [notices.prefers_plain(by_prompt[pair["prompt"]], pair[name]) for name in ("chosen", "rejected")]
            for pair in pairs
        ]
        return sum(chosen < rejected for chosen, rejected in worth) / len(worth)

    assert wrong(0.0) == 0.0 and 0.15 < wrong(0.2) < 0.25


def test_every_command_composes(tmp_path: Path) -> None:
    hacking, rows, notices = module("reward_hacking"), module("_hacking_rows"), module("_notices")
    frozen = module("_stages").frozen
    with registered(notices.register, "notices"):
        options = hacking.parser().parse_args(["--out", str(tmp_path), "--notices", "30", "--pairs", "30"])
        recipe = frozen(hacking.Recipe, tmp_path, options)
        with pytest.raises(SystemExit, match=rf"begun with another recipe: steps {recipe.steps} \(now 4\)"):
            other = hacking.parser().parse_args(["--steps", "4", "--notices", "30", "--pairs", "30"])
            frozen(hacking.Recipe, tmp_path, other)
        data = tmp_path / "data"
        hacking.write_data(recipe, data, notices.worker, hacking.FLAWS)
        experts = [json.loads(line) for line in (data / "experts.jsonl").read_text().splitlines()]
        assert len(experts) == 30 and all(len(one["reply"].split()) < 12 for one in experts)
        _, *tuning = hacking.tuning_command(recipe, hacking.chats(data), 0, tmp_path / "base")
        assert compose_config("train", TrainConfig, tuning).trainer.max_steps == recipe.tuning_steps
        _, _, *scoring = hacking.scorer_command(recipe, data, tmp_path / "base", "word", 0, tmp_path / "scorer")
        assert compose_config("reward", RewardTrainConfig, scoring).pairs.files == [str(data / "word.jsonl")]
        for name, row in rows.ROWS.items():
            path = tmp_path / f"{name}.toml"
            path.write_text(rows.reward_file(row, "somewhere", str(data / "experts.jsonl")))
            spec = read_rewards(path, ["gold", "facts", "reward"])
            assert ("style" in spec.components) == row.style and bool(spec.components["liked"].gates) == row.gate
            if name not in ("none", "all"):
                continue
            _, *command = hacking.run_command(recipe, row, tmp_path, data, path, 3, tmp_path / "run")
            config = compose_config("rl", RlConfig, command)
            assert config.evaluation.temperature == 0 and config.trainer.eval_every == recipe.eval_every
            assert (config.anchor.weight > 0, config.monitor.action == "rollback") == (row.anchor, row.monitor)


def written(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_falls_and_alarms_are_those_of_the_run(tmp_path: Path) -> None:
    rows, notices = module("_hacking_rows"), module("_notices")
    draw = random.Random(1)
    experts = [{"prompt": one.prompt, "reply": notices.expert(draw, one)} for one in notices.tasks(100)]
    (tmp_path / "experts.jsonl").write_text("\n".join(map(json.dumps, experts)))
    gold = [(0, 0.8), (2, 0.82), (4, 0.79), (6, 0.5)]
    written(tmp_path, "evaluations.csv", [{"step": s, "domain": d, "reward": r} for s, r in gold for d in ("x", "all")])
    warned = [(4, "entropy", 0.1), (6, "length", 30.0), (6, "gold", 0.5)]
    written(tmp_path, "warnings.csv", [dict(zip(("step", "figure", "value"), one, strict=True)) for one in warned])
    lines = []
    for step in (1, 2):
        for one in experts[:40]:
            text = one["reply"] if step == 1 else f"{one['reply']} {' '.join(notices.FILLERS[:2])}"
            said = [{"role": "user", "content": one["prompt"]}, {"role": "assistant", "content": text}]
            record = {
                "step": step,
                "failure": None,
                "messages": said,
                "rewards": {"liked": 0.5},
                "raw": {"liked": step},
            }
            lines.append(json.dumps(record))
    (tmp_path / "rollouts.jsonl").write_text("\n".join(lines))
    found = rows.figures_of(tmp_path, str(tmp_path / "experts.jsonl"), rows.ROWS["none"])
    assert (found["before"], found["after"], found["lowest"]) == (0.8, 0.5, 0.5) and found["fall"] == pytest.approx(0.3)
    assert (found["alarm"], found["alarm_of"]) == (6, "length") and found["fall_at_alarm"] == pytest.approx(0.32)
    assert found["steps"][2]["score"] == 2.0 and found["steps"][2]["words"] > found["steps"][1]["words"]
    assert found["steps"][1]["auc"] < 0.65 and found["steps"][2]["auc"] > 0.6


def test_a_run_that_rolled_back_has_the_gold_of_its_alarm() -> None:
    rows = module("_hacking_rows")
    gold = [(0, 0.8), (2, 0.82), (4, 0.82)]  # the last one is of the weights of step 2
    found = rows.gold_figures(gold, [(4, "gold", 0.7)], True)
    assert found["fall"] == pytest.approx(-0.02) and found["fall_at_alarm"] == pytest.approx(0.12)
    assert rows.gold_figures(gold, [(4, "length", 30.0)], True)["fall_at_alarm"] == 0.0
    assert "alarm" not in rows.gold_figures(gold, [], True)


def test_anchors_are_compared_at_the_same_score() -> None:
    rows = module("_hacking_rows")

    def figures(*steps: tuple[float, float, float]) -> dict[int, dict[str, float]]:
        return {n: dict(zip(("score", "words", "auc"), one, strict=True)) for n, one in enumerate(steps, 1)}

    plain, held = figures((0, 10, 0.6), (1, 15, 0.8), (2, 20, 0.9)), figures((0, 10, 0.6), (0.9, 11, 0.65))
    found = rows.at_equal_score(plain, held)
    assert found["score"] == 0.9 and found["excess"] == pytest.approx((0.3, 0.15))
    assert found["growth"] == pytest.approx((0.5, 0.1))
    beyond = figures((0, 10, 0.6), (2.5, 12, 0.7), (3, 13, 0.75))
    found = rows.at_equal_score(plain, beyond)  # the plain run never has its last score
    assert found["score"] == 2.5 and found["growth"] == pytest.approx((1.0, 0.2))
