"""A run that is rewarded by a judge at a server, which fails now and then."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run  # noqa: F401  # fixtures

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.chat import Message
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ConfigError
from arcforge_rl.rewards.anchors import prompts_of
from arcforge_rl.trainer.run import run
from support.judges import first_wins, judge_server, write_rubric


def reward_file(folder: Path, **options: Any) -> str:
    given = {"rubric": write_rubric(folder), "uncalibrated": True, "cache": str(folder / "v.sqlite"), **options}
    said = ", ".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
    text = '[[reward]]\nweights = { liked = 1.0 }\n[component.liked]\nkind = "grm"\nreward = "grm"\n'
    text += f"options = {{ {said} }}\n"
    (folder / "reward.toml").write_text(text)
    return str(folder / "reward.toml")


def test_a_run_learns_from_verdicts_and_never_from_a_missing_one(
    small_run: Compose,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.01)

    def moody(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
        """Every third question is answered with an error, half an answer or prose."""
        number = int(seed) % 9
        if number in (0, 1):
            raise RuntimeError("500" if number else "206")
        if number == 2:
            return "ten of ten"
        (candidate,) = schema["properties"]["candidate"]["enum"]
        great = ("small", "middling", "great")[int(candidate, 16) % 3]
        return json.dumps({"candidate": candidate, "reason": "so", "great": great, "plain": "no"})

    size = ("trainer.max_steps=2", "evaluation.tasks=0", "rollout.drop_equal=false")
    path = reward_file(tmp_path, attempts=1)
    with judge_server(moody) as (url, asked):
        agent = (f"+agents.judge.url={url}", "+agents.judge.attempts=1")
        found = run(small_run(f"rewards={path}", *agent, *size))
        first = len(asked)
        run(small_run(f"rewards={path}", *agent, *size))
    assert len(asked) - first < first, "verdicts outlive the run"
    rows = [json.loads(line) for line in (found.dir / "rollouts.jsonl").read_text().splitlines()]
    failed = [row for row in rows if row["failure"]]
    assert failed and not any(row["learnt"] for row in failed)
    assert all(row["failure"]["kind"] == "verifier" and not row["rewards"] for row in failed)
    assert {row["rewards"]["liked"] for row in rows if row["learnt"]} <= {0.0, 0.375, 0.75}
    metrics = list(csv.DictReader((found.dir / "metrics.csv").read_text().splitlines()))
    assert sum(float(row["reward_liked_failures"]) for row in metrics) == len(failed)
    assert sum(float(row["reward_liked_requests"]) for row in metrics) == first
    assert sum(float(row["failed_verifier"] or 0) for row in metrics) == len(failed)


def test_what_cannot_judge_is_refused_before_the_run(small_run: Compose, tmp_path: Path) -> None:  # noqa: F811
    path = reward_file(tmp_path, mode="pairwise")
    for options, refused in (
        ((), r"agents=\[\]: environment=copy needs judge"),
        (("+agents.judge.engine=policy",), "must not judge itself"),
        (("+agents.judge.url=http://127.0.0.1:1", "rollout.group_size=1", "rollout.drop_equal=false",
          "algorithm=reinforce_pp"), r"rollout\.group_size=1: must be at least 2"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=refused):
            run(small_run(f"rewards={path}", *options))
    path = reward_file(tmp_path, uncalibrated=False)
    with pytest.raises(ConfigError, match=r"options\.calibration=None: must name what arcforge-env calibrate wrote"):
        run(small_run(f"rewards={path}", "+agents.judge.url=http://127.0.0.1:1"))
    with judge_server(first_wins) as (url, asked):
        path = reward_file(tmp_path, mode="pairwise", comparisons="full")
        size = ("trainer.max_steps=1", "evaluation.tasks=0", "rollout.drop_equal=false")
        found = run(small_run(f"rewards={path}", f"+agents.judge.url={url}", *size))
    rows = [json.loads(line) for line in (found.dir / "rollouts.jsonl").read_text().splitlines()]
    assert asked and {row["rewards"]["liked"] for row in rows} == {0.5}, "position bias is no reward"


def test_held_out_prompts_are_no_opponents(small_run: Compose, tmp_path: Path) -> None:  # noqa: F811
    (asked,) = [prompt for prompt, n in prompts_of(CopyEnvironment(CopyConfig(split="heldout")), 4).items() if n == 3]
    (tmp_path / "experts.jsonl").write_text(json.dumps({"prompt": asked, "reply": "r"}) + "\n")
    path = reward_file(tmp_path, mode="pairwise", opponents=str(tmp_path / "experts.jsonl"))
    with pytest.raises(ConfigError, match=r"component\.liked\.options\.opponents.*the prompt of held-out task 3"):
        run(small_run(f"rewards={path}", "+agents.judge.url=http://127.0.0.1:1"))
