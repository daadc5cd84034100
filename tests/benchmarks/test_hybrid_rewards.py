"""The parts of ``benchmarks/hybrid_rewards.py`` and ``hybrid_general.py``: rewards, data, commands, and figures
of runs."""

from __future__ import annotations

import asyncio
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
from arcforge_core.contracts.environment import Failure, Outcome, Reply
from arcforge_core.episodes.scripted import play
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.configs.objectives import GeneralConfig
from arcforge_rl.rewards.compose import Comparable, compose
from arcforge_rl.rewards.toml import read_rewards
from arcforge_rl.rollouts.sampler import build_environment
from support.components import registered


def test_a_reward_is_a_component_or_all_of_them_for_replies_with_the_facts(tmp_path: Path) -> None:
    rows, notices = module("_hybrid_rows"), module("hybrid_rewards").NOTICES
    values = [
        {"gold": 1.0, "facts": 1.0, "liked": -0.2, "style": 0.5},
        {"gold": 0.0, "facts": 0.0, "liked": 0.4, "style": 1.0},
    ]
    rewards: dict[str, list[float]] = {}
    for row in rows.ROWS:
        path = tmp_path / f"{row}.toml"
        path.write_text(rows.reward_file(notices, row, tmp_path / "scorer", tmp_path / "experts.jsonl"))
        spec = read_rewards(path, ["gold", "facts", "reward"])
        rewards[row] = [compose(spec, one)["reward"] for one in Comparable(spec)(values)]
    assert rewards == {
        "rule": [1.0, 0.0],
        "orm": [0.0, 1.0],
        "style": [0.5, 1.0],
        "hybrid": [0.5, 0.0],
        "editor": [1.0, 0.0],
    }


def test_every_command_of_a_seed_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid, rows, notices = (module(name) for name in ("hybrid_rewards", "_hybrid_rows", "_notices"))
    ran: dict[str, list[str]] = {}
    monkeypatch.setattr(rows, "once", lambda place, command: ran.setdefault(place.name, command))
    sizes = ["--notices", "300", "--pairs", "30", "--experts", "20"]
    recipe = module("_stages").frozen(rows.Recipe, tmp_path, hybrid.parser().parse_args(sizes))
    with registered(notices.register, "notices"):
        rows.learn(hybrid.NOTICES, recipe, "rule", 3, tmp_path)
        assert ran.keys() == {"base-3", "rule-3"}  # no reward model is trained for it
        rows.learn(hybrid.NOTICES, recipe, "hybrid", 3, tmp_path)
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
    rows = module("_hybrid_rows")
    texts = {
        1: [(1.0, "Certainly, your cups come. We thank you."), (0.0, "Your cups come.")],
        **{step: [(1.0, "Your cups come."), (1.0, "You get cups.")] for step in (2, 3, 4)},
    }
    for row, after in {"rule": 0.6, "orm": 0.7, "style": 0.75, "hybrid": 0.9}.items():
        ended(tmp_path / f"{row}-0", (0.4, after), texts)
    ended(tmp_path / "hybrid-1", (0.4, 0.9), texts)
    found = rows.report(tmp_path, rows.ROWS, range(2), "facts")
    assert found["runs"]["hybrid"][0]["gold"] == [(0, 0.4), (4, 0.9)] and found["runs"]["editor"] == {}
    out = capsys.readouterr().out
    assert "| hybrid | 0 | 40.0%, 90.0% | 50% to 100% | 5.0 to 3.0 | 50% to 0% | 60 |" in out
    assert "| 0 | rule +30.0, orm +20.0, style +15.0 | yes |" in out and "\n| 1 |" not in out
    ended(tmp_path / "style-1", (0.4, 0.9), texts)
    for row in ("rule", "orm"):
        ended(tmp_path / f"{row}-1", (0.4, 0.5), texts)
    rows.report(tmp_path, rows.ROWS, range(2), "facts")
    assert "| 1 | rule +40.0, orm +40.0, style +0.0 | no |" in capsys.readouterr().out


def test_the_mixtures_rule_forgives_packaging_and_its_editor_does_not() -> None:
    packaging, draw, forgiven = module("_packaging"), random.Random(1), 0
    strict, edited = build_environment(GeneralConfig()), packaging.Edited(packaging.EditedConfig())
    for number in range(44):
        task = strict.task(number)
        assert edited.task(number) == task
        right, verdict = asyncio.run(play(strict, task, strict.oracle(task)))
        wrong, _ = asyncio.run(play(strict, task, [Reply("Perhaps.\nOr not.\nWho knows.")]))
        assert verdict.reward == 1.0 and not packaging.is_packaged(right.reply.text)
        for one, (opened, thanked) in (
            (right, (0, 0)),
            (right, (1, 0)),
            (right, (0, 1)),
            (right, (1, 1)),
            (wrong, (0, 0)),
        ):
            episode = packaging.with_text(one, packaging.packed(draw, one.reply.text, (1 - thanked, thanked), opened))
            own = asyncio.run(strict.score(task, episode)).reward
            alone = asyncio.run(edited.score(task, episode))
            (grouped,) = asyncio.run(edited.score_group(task, [episode]))
            assert alone == grouped and alone.reward == (0.0 if opened or thanked else own)
            assert alone.rewards["passed"] == 1.0 if one is right else alone.rewards["passed"] < 1.0
            forgiven += one is right and own < 1.0
    assert forgiven > 44


def test_an_episode_that_cannot_be_judged_stays_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    packaging, failed = module("_packaging"), Outcome.failed(Failure("verifier", "gone"))
    edited = packaging.Edited(packaging.EditedConfig())
    task = edited.task(0)
    episode, _ = asyncio.run(play(edited, task, edited.oracle(task)))

    async def score(self: Any, task: Any, episode: Any) -> Outcome:
        return failed

    monkeypatch.setattr(packaging.Mixture, "score", score)
    assert asyncio.run(edited.score(task, episode)) == failed


def test_the_mixtures_files_are_of_careless_writers_and_readers(tmp_path: Path) -> None:
    packaging, notices = module("_packaging"), module("_notices")
    records = [
        {
            "task": f"t{n}",
            "messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": str(n)}],
        }
        for n in range(400)
    ]
    kept = tmp_path / "kept"
    (kept / "reasoning").mkdir(parents=True)
    module("_stages").write_lines(kept / "reasoning" / "numbers.jsonl", records)
    files = tmp_path / "careless", tmp_path / "experts.jsonl", tmp_path / "pairs.jsonl"
    packaging.write_files([kept], *files, (50, 400), seed=3, noise=0.1)
    written = [json.loads(line) for line in (files[0] / "reasoning" / "numbers.jsonl").read_text().splitlines()]
    replies = [one["messages"][1]["content"].split("\n") for one in written]
    opened = [lines[0] == packaging.OPENING for lines in replies]
    bare = [lines[said] for lines, said in zip(replies, opened, strict=True)]
    thanked = [len(lines) > 1 + said for lines, said in zip(replies, opened, strict=True)]
    wrong = [text != str(n) for n, text in enumerate(bare)]
    assert [one["task"] for one in written] == [f"t{n}" for n in range(400)]
    shares = [sum(some) / 400 for some in (opened, thanked, wrong)]
    assert all(abs(share - wanted) < 0.08 for share, wanted in zip(shares, (0.6, 0.8, 0.1), strict=True)), shares
    experts = [json.loads(line)["reply"] for line in files[1].read_text().splitlines()]
    assert len(experts) == 50 and set(experts) <= {str(n) for n in range(400)}
    pairs = [json.loads(line) for line in files[2].read_text().splitlines()]
    turned = [notices.plainness(one["chosen"]) < notices.plainness(one["rejected"]) for one in pairs]
    assert 250 < len(pairs) <= 400 and abs(sum(turned) / len(turned) - 0.1) < 0.05
    assert all(one["prompt"] == [{"role": "user", "content": one["prompt"][0]["content"]}] for one in pairs)


def test_every_command_of_the_mixture_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    general, rows, packaging = (module(name) for name in ("hybrid_general", "_hybrid_rows", "_packaging"))
    ran: dict[str, list[str]] = {}
    note = lambda place, command: ran.setdefault(place.name, command)  # noqa: E731
    monkeypatch.setattr(rows, "once", note)
    monkeypatch.setattr(general, "once", note)
    recipe = module("_stages").frozen(rows.Recipe, tmp_path, general.parser().parse_args([]))
    monkeypatch.setattr(general, "write_files", lambda *found: None)
    (tmp_path / "data-2").mkdir()
    with registered(packaging.register, "edited"):
        rows.learn(general.MIXTURE, recipe, "hybrid", 2, tmp_path)
        rows.learn(general.MIXTURE, recipe, "editor", 2, tmp_path)
        assert ran.keys() == {"data-2", "base-2", "scorer-2", "hybrid-2", "editor-2"}
        tuning = compose_config("train", TrainConfig, ran["base-2"][1:])
        run = compose_config("rl", RlConfig, ran["hybrid-2"][1:])
    assert tuning.data.folders == [f"{tmp_path}/data-2/careless"] and tuning.trainer.sequence_length == 512
    assert run.environment.name == "edited" and run.rollout.max_new_tokens == 160 and run.evaluation.temperature == 1.0
    spec, gold = (read_rewards(tmp_path / name / "reward.toml", None) for name in ("hybrid-2", "editor-2"))
    assert dict(spec.components["liked"].gates) == dict(spec.components["style"].gates) == {"passed": 1.0}
    assert gold.components["gold"].of == "reward"
