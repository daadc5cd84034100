"""Hybrid rewards of an environment: values, groups, failures, and a run that is trained on them."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run  # noqa: F401  # fixtures

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.environment import Episode, Failure, NoVerdict, Outcome, Reply, Task
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ConfigError
from arcforge_rl.rewards.hybrid import Hybrid, known_names, with_rewards
from arcforge_rl.rewards.toml import spec_of
from arcforge_rl.trainer.run import run

TASK = Task("t", "say it", "two")
GATED = """
[[reward]]
weights = { exact = 1.0, style = 3.0 }

[component.style]
kind = "grm"
reward = "distinct"
gates = { exact = 1.0 }
"""


class Style:
    """Measures the number that a reply ends with; some words fail."""

    async def measure(self, task: Task, episode: Episode) -> float:
        word = episode.reply.text.split()[-1]
        if word == "late":
            raise NoVerdict("the judge is late")
        return float(word)


def scored(text: str, replies: list[str], environment: Any = None) -> list[Outcome]:
    environment = environment or CopyEnvironment(CopyConfig())
    hybrid = Hybrid(environment, spec_of(tomllib.loads(text), known_names(environment)), {"style": Style()})
    episodes = [Episode((), Reply(reply)) for reply in replies]
    return list(asyncio.run(hybrid.score_group(TASK, episodes)))


class Marks(CopyEnvironment):
    """Its own reward is 1 for replies that begin with right."""

    async def score(self, task: Task, episode: Episode) -> Outcome:
        if episode.reply.text.startswith("broken"):
            return Outcome.failed(Failure("sandbox", "gone"))
        right = float(episode.reply.text.startswith("right"))
        return Outcome({"reward": right, "exact": right}, {"reward": "own", "exact": "own"})


def test_no_credit_below_a_gate() -> None:
    outcomes = scored(GATED, ["right 0.5", "wrong 0.5"], Marks(CopyConfig()))
    assert [one.rewards for one in outcomes] == [
        {"reward": (1.0 + 3 * 0.5) / 4, "exact": 1.0, "style": 0.5, "verified": 1.0},
        {"reward": 0.0, "exact": 0.0, "style": 0.0, "verified": 0.0},
    ]
    assert outcomes[1].raw == {"style": 0.5} and outcomes[0].reasons["reward"] == "exact 1; style 0.5"


def test_values_of_a_group_are_compared_and_failures_left_out() -> None:
    text = GATED.replace("gates = { exact = 1.0 }", 'normalise = "group"')
    replies = ["right 7", "right late", "broken 9", "right 3", "right oops", "right 100", "right nan"]
    outcomes = scored(text, replies, Marks(CopyConfig()))
    assert [one.failure and one.failure.reason for one in outcomes] == [
        None, "the judge is late", "gone", None, "style: ValueError: could not convert string to float: 'oops'", None,
        "style is nan",
    ]  # fmt: skip
    assert [one.rewards["style"] for one in outcomes if one.failure is None] == [0.5, 0.0, 1.0]
    assert [one.raw["style"] for one in outcomes if one.failure is None] == [7.0, 3.0, 100.0]
    alone = scored(text, ["right 7"], Marks(CopyConfig()))
    assert alone[0].rewards["style"] == 0.5


class Together:
    """Compares lengths, once its agent is there; gives no verdict when it is first asked."""

    compares, agents = True, ("judge",)
    asked = 0

    def connect(self, agent_of: Any, identity_of: Any) -> None:
        self.judge = agent_of(identity_of("judge"), "seed", None)

    async def measure_group(self, task: Task, episodes: Sequence[Episode]) -> list[Any]:
        self.asked += 1
        if self.asked == 1:
            raise NoVerdict("busy")
        assert self.judge == "judge/seed"
        longest = max(len(episode.reply.text) for episode in episodes)
        wrong = Failure("verifier", "no verdict")
        return [wrong if one.reply.text == "right x" else len(one.reply.text) / longest for one in episodes]

    def take_figures(self) -> dict[str, float]:
        return {"calls": float(self.asked)}


def test_a_component_compares_a_group_with_an_agent_and_is_asked_again() -> None:
    environment, together = Marks(CopyConfig()), Together()
    spec = spec_of(tomllib.loads("[[reward]]\nweights = { style = 1.0 }\n[component.style]\nreward = 'distinct'"))
    hybrid = Hybrid(environment, spec, {"style": together})  # type: ignore[dict-item]
    assert hybrid.compares and hybrid.agents == ("judge",) and hybrid.asked == ["judge"]
    hybrid.connect(lambda name, seed, schema: f"{name}/{seed}", str)  # type: ignore[arg-type,return-value]
    replies = ["right longer", "broken", "right x", "right"]
    outcomes = asyncio.run(hybrid.score_group(TASK, [Episode((), Reply(reply)) for reply in replies]))
    assert [one.failure.reason if one.failure else one.reward for one in outcomes] == [
        1.0, "gone", "no verdict", 5 / 12,
    ]  # fmt: skip
    figures = hybrid.take_figures()
    assert figures["reward_style_failures"] == 1 and figures["reward_style_calls"] == 2
    assert figures["reward_style_seconds"] > 0 and set(hybrid.take_figures()) == {"reward_style_calls"}


def test_a_reward_that_the_environment_does_not_give_is_named() -> None:
    text = "[[reward]]\nweights = { fluent = 1.0 }"
    with pytest.raises(ConfigError, match=r"reward\[reward\]='fluent': is no component, reward or metric; there are"):
        scored(text, ["x"])

    class Unknown(Marks):
        """Declares nothing."""

    Unknown.verifiers = None  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"component\.fluent='fluent': the environment gives exact, reward"):
        scored(text, ["x 1"], Unknown.__new__(Unknown))
    with pytest.raises(ConfigError, match=r"component\.fluent='floent': is no component, reward or metric"):
        scored(f'{text}\n[component.fluent]\nof = "exact"\notherwise = "floent"', ["x"])
    instead = "[[reward]]\nweights = { fluent = 1.0, style = 0.0 }\n[component.fluent]\notherwise = 'exact'"
    assert [one.reward for one in scored(instead, ["right 1", "wrong 1"], Unknown.__new__(Unknown))] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("component", "refused"),
    [
        ('reward = "wrds"', "wrds"),
        ('reward = "words"\noptions = { lest = 1 }', r"component\.style\.options\.lest=1: words has"),
        ('reward = "words"\noptions = { least = 5, most = 2 }', r"options\.most=2"),
        ('reward = "python_doctest"', "checks answers of records, not episodes"),
        ('reward = "words"\notherwise = "exact"', r"component\.style\.otherwise='exact': is of the environment"),
        ('of = "exact"\nnormalise = "quantile"', r"component\.style\.normalise='quantile': needs collection=sync"),
    ],
)
def test_components_that_cannot_be_built_are_refused(tmp_path: Path, component: str, refused: str) -> None:
    (tmp_path / "reward.toml").write_text(f"[[reward]]\nweights = {{ style = 1 }}\n[component.style]\n{component}")
    with pytest.raises(Exception, match=refused):
        with_rewards(CopyEnvironment(CopyConfig()), str(tmp_path / "reward.toml"), "asynchronous")


def test_a_run_is_trained_on_the_reward_of_its_file(small_run: Compose, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "reward.toml"
    path.write_text(
        "[[reward]]\nweights = { exact = 1, length = 1 }\n"
        '[component.length]\nreward = "words"\noptions = { least = 0, most = 50 }\nnormalise = "quantile"\n'
    )
    found = run(small_run(f"rewards={path}", "trainer.max_steps=2", "evaluation.tasks=2"))
    rows = [json.loads(line) for line in (found.dir / "rollouts.jsonl").read_text().splitlines()]
    assert all(row["rewards"]["reward"] == (row["rewards"]["exact"] + row["rewards"]["length"]) / 2 for row in rows)
    assert {row["rewards"]["length"] for row in rows} == {0.5}, "all of one length: no rollout exceeds another"
    assert all(row["raw"] == {"length": 1.0} for row in rows)
    assert "reward_length" in (found.dir / "metrics.csv").read_text().splitlines()[0]
    run(small_run("resume=latest", f"rewards={path}", "trainer.max_steps=3", "evaluation.tasks=2"))
    header = (found.dir / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"reward_length_spread", "reward_exact_share", "reward_length_seconds", "reward_length_failures"} <= {
        *header
    }
    with pytest.raises(ConfigError, match=r"rewards='.*reward\.toml': must be null: no reward counts in algorithm=opd"):
        run(small_run(f"rewards={path}", "algorithm=opd", "+teachers.default=x"))


DECOUPLED = ("algorithm=grpo", "algorithm.components=decoupled")


def test_components_apart_need_a_reward_that_is_a_sum(small_run: Compose, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match=r"algorithm\.components='decoupled': needs components: rewards=FILE"):
        run(small_run(*DECOUPLED))
    path = tmp_path / "reward.toml"
    path.write_text('[[reward]]\naggregation = "all-pass"\nweights = { exact = 1 }')
    with pytest.raises(ConfigError, match=r"needs a reward.reward. that is a weighted-mean or weighted-sum"):
        run(small_run(*DECOUPLED, f"rewards={path}"))
    text = (
        '[[reward]]\nweights = { exact = 1, short = 1 }\n[component.short]\nreward = "words"\noptions = { most = 1 }\n'
    )
    path.write_text(text)
    found = run(small_run(*DECOUPLED, f"rewards={path}", "trainer.max_steps=1", "evaluation.tasks=0"))
    rows = [json.loads(line) for line in (found.dir / "rollouts.jsonl").read_text().splitlines()]
    for group in {row["group"] for row in rows if row["learnt"]}:
        values = [row["rewards"] for row in rows if row["group"] == group]
        assert any(len({one[name] for one in values}) > 1 for name in ("exact", "short"))
