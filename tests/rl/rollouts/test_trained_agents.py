"""Several trained agents in an episode: branches, rewards and comparisons of their own, on the same weights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.rollouts.test_others import END, TOKENIZER, played
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run
from tests.rl.trainer.test_run import metrics, weights

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agents, Episode, EpisodeFailure, Outcome, Reply, Task
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.episodes.rewards import metric
from arcforge_core.episodes.scripted import ScriptedAgent
from arcforge_core.errors import ConfigError
from arcforge_rl.algorithms import scoring
from arcforge_rl.configs.algorithms import GrpoConfig
from arcforge_rl.configs.environments import ReviewedMathConfig
from arcforge_rl.configs.others import agent_of
from arcforge_rl.environments.reviewed_math import ReviewedMath
from arcforge_rl.orchestrator.process import source as process_source
from arcforge_rl.orchestrator.record import pack, unpack
from arcforge_rl.rollouts.collect import left_out, traced
from arcforge_rl.rollouts.others import Others
from arcforge_rl.trainer.run import run
from support.both_orchestrators import runs_of_both
from support.orchestrated import build_pair
from support.policies import PAIR

__all__ = ["learnable", "no_drawing", "policy", "small_run"]
TRAINED = {"engine": "policy", "trained": True, "max_new_tokens": 9}
OTHER = "+agents.other={engine: policy, trained: true, max_new_tokens: 2}"


def text_of(branch: Branch) -> str:
    return TOKENIZER.decode(branch.ids[branch.sampled].tolist())


def test_tokens_of_a_trained_agent_are_branches_with_its_name_sampled_as_the_policys() -> None:
    rollouts, engine, params = played(agent_of(TRAINED, "user"))
    for rollout in rollouts:
        found = [(branch.branch_id, branch.agent, text_of(branch)) for branch in rollout.branches]
        assert found == [("0", "", f"no{END}"), ("1", "", f"no{END}")] + [
            (f"user.{n}", "user", f"yes{END}") for n in range(2)
        ]
    assert {(given.temperature, given.max_new_tokens) for given in params} == {(1.0, 5), (1.0, 9)}
    assert len({given.seed for given in params}) == len(params) and len(engine.rounds) == 4
    again = unpack(pack(rollouts[0]), rollouts[0].task, rollouts[0].outcome)
    assert again.branches == rollouts[0].branches and again.branches[2].agent == "user"


def trace(number: int, rewards: dict[str, float], agents: dict[str, int], group: str = "g") -> Trace:
    """Returns a trace of agents that sampled this many tokens each."""
    branches = []
    for name, count in agents.items():
        branch = Branch(f"{group}{number}{name}", agent=name)
        branch.read([1])
        branch.sample([2] * count, [-1.0] * count, [0] * count)
        branches.append(branch)
    return Trace("t", group, f"{group}{number}", branches, rewards)


def test_agents_are_compared_with_themselves_by_their_own_rewards_and_a_task_counts_once() -> None:
    pairs = [
        trace(0, {"reward": 1.0, "reward_user": 0.0}, {"": 3, "user": 5}),
        trace(1, {"reward": 0.0, "reward_user": 1.0}, {"": 2, "user": 1}),
    ]
    alone = [trace(0, {"reward": 1.0}, {"": 4}, "h"), trace(1, {"reward": 0.0}, {"": 4}, "h")]
    assert [one.by_agent() for one in alone] == [[one] for one in alone]
    traces = [part for whole in (*pairs, *alone) for part in whole.by_agent()]
    assert [(one.group_id, one.reward) for one in traces[:4]] == [
        ("g/solver", 1.0), ("g/user", 0.0), ("g/solver", 0.0), ("g/user", 1.0),
    ]  # fmt: skip
    advantages = scoring.advantages(traces, GrpoConfig(scale="none"))
    assert advantages == [0.5, -0.5, -0.5, 0.5, 0.5, -0.5]
    weights_R = [w * one.num_sampled for w, one in zip(scoring.shares(traces, GrpoConfig()), traces, strict=True)]
    assert sum(weights_R) == pytest.approx(1.0)
    assert sum(weights_R[:4]) == pytest.approx(0.5) and weights_R[0] == pytest.approx(1 / 8)
    shared = trace(2, {"reward": 0.25}, {"user": 1}).by_agent()
    assert [(one.rollout_id, one.reward, one.parts) for one in shared] == [("g2/user", 0.25, 1)]


def test_a_group_that_teaches_one_agent_is_kept() -> None:
    """The solver's rewards are equal, the other agent's are not."""
    rollouts, _, _ = played(agent_of(TRAINED, "user"))
    groups = []
    for values in ((0.0, 1.0), (1.0, 1.0)):
        scored = [
            traced(type(one)(one.number, one.task, one.domain, one.episode, outcome, one.branches), "s", 2)
            for one, value in zip(rollouts, values, strict=True)
            for outcome in [Outcome({"reward": 1.0, "reward_user": value}, {})]
        ]
        groups.append(left_out(scored, ("reward",)))
    assert groups == [None, "all_right"]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """``environment=copy`` with a second agent; each is rewarded for an even number of characters."""

    for name, value in PAIR.items():
        monkeypatch.setattr(CopyEnvironment, name, value)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_a_run_trains_both_and_asynchronously_ends_in_the_same_weights(
    small_run: Compose, tmp_path: Path, pair: None
) -> None:
    shared = ("engine=paged", "engine.cache_tokens=4096", "evaluation.tasks=0", "trainer.deterministic=true")
    shared += ("algorithm=double_sided", "rollout.refills=9")
    config = ("collection=async", "collection.eta=0", "collection.reset_optimizer=false", OTHER)
    found = {
        name: run(small_run(*shared, *options, f"output_dir={tmp_path / name}")).dir
        for name, options in {
            "sync": (OTHER,),
            "async": config,
            "frozen": (OTHER.replace("trained: true", "trained: false"),),
        }.items()
    }
    first, second, third = (weights(folder) for folder in found.values())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)
    assert lines(found["sync"]) == lines(found["async"])
    rows = {name: metrics(folder) for name, folder in found.items()}
    for sync, free in zip(rows["sync"], rows["async"], strict=True):
        assert sync["grad_norm"] == free["grad_norm"] and float(sync["logprob_gap"]) < 1e-5
    assert {line["length"] for line in lines(found["frozen"])} <= {0, 1, 2, 3}
    assert max(line["length"] for line in lines(found["sync"])) > 3, "tokens of both agents"


@pytest.mark.nightly(reason="two runs on a server, one with an orchestrator's process")
@pytest.mark.parametrize("kind", ["trained", "own engine"])
def test_in_a_process_of_the_orchestrator_they_end_in_the_same_weights(
    small_run: Compose, tmp_path: Path, policy: Path, pair: None, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(process_source, "build_source", build_pair)
    built, engines = [], Others._engine
    monkeypatch.setattr(Others, "_engine", lambda others, *given: built.append(given) or engines(others, *given))
    own = f"engine: paged, init: {policy}, options: {{cache_tokens: 4096, prefix_cache: false}}, max_new_tokens: 2"
    other = OTHER if kind == "trained" else f"+agents.other={{{own}}}"
    folders = runs_of_both(small_run, policy, tmp_path, (other,))
    first, second = map(weights, folders)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert lines(folders[0]) == lines(folders[1])
    assert (max(line["length"] for line in lines(folders[1])) > 3) == (kind == "trained"), "tokens of both agents"
    assert len(built) == (kind == "own engine"), "the process that plays loads it, the trainer does not"
    assert len({line["rewards"]["reward_other"] for line in lines(folders[1])}) == 2, "it says different things"


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"url": "http://x", "trained": True}, r"agents\.user\.trained=True: needs engine=policy"),
        ({"engine": "paged", "init": "x", "trained": True}, "needs engine=policy"),
        ({"engine": "policy", "trained": True, "temperature": 0.5}, r"agents\.user\.temperature=0\.5: a trained agent"),
    ],
)
def test_agents_that_cannot_be_trained_are_refused(fields: dict[str, Any], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        agent_of(fields, "user")


@pytest.mark.parametrize(
    ("answers", "review", "rewards"),
    [
        (("right", "right"), "Yes.", (1.0, 1.0)),
        (("wrong", "right"), "no, it is wrong", (1.0, 1.0)),
        (("wrong", "wrong"), "yes", (0.0, 0.0)),
        (("right", "wrong"), "I do not know", (0.0, 0.0)),
    ],
)
def test_a_reviewer_is_rewarded_for_its_verdict_and_the_solver_for_its_last_answer(
    answers: tuple[str, str], review: str, rewards: tuple[float, float]
) -> None:
    environment = ReviewedMath(ReviewedMathConfig(kinds=["arithmetic"]))
    task = environment.task(0)
    said = {"right": rf"\boxed{{{task.answer}}}", "wrong": r"\boxed{123456789}"}
    agents = Agents(ScriptedAgent([Reply(said[answer]) for answer in answers]), reviewer=ScriptedAgent([Reply(review)]))

    async def scored() -> Outcome:
        return await environment.score(task, await environment.run(task, agents))

    outcome = asyncio.run(scored())
    assert (outcome.rewards["reward"], outcome.rewards["reward_reviewer"]) == rewards


def test_an_agent_is_not_trained_by_the_reward_of_another_where_its_own_is_missing() -> None:
    """The verifier of its reward breaks: that is a failure of the rollout, as with any reward."""

    class Broken(CopyEnvironment):
        agents = ("other",)

        @metric(timeout=None)
        async def reward_other(self, task: Task, episode: Episode) -> float:
            raise EpisodeFailure("verifier", "the sandbox is gone")

        @metric(timeout=None)
        async def further(self, task: Task, episode: Episode) -> float:
            raise EpisodeFailure("verifier", "unimportant")

    environment, reply = Broken(CopyConfig()), Reply("x")
    episode = Episode((Message("user", "?"), reply.message), reply)
    outcome = asyncio.run(environment.score(environment.task(0), episode))
    assert outcome.failure is not None and "the sandbox is gone" in outcome.failure.reason and not outcome.rewards
    environment.agents = ()
    assert asyncio.run(environment.score(environment.task(0), episode)).failure is None
