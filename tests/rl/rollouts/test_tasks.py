"""Training tasks with all that judges them, built alike by a trainer and by the process of an orchestrator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run
from tests.rl.trainer.test_run import metrics, weights

from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ConfigError
from arcforge_core.ops.dispatch import Ops
from arcforge_rl.environments.unjudged import Unjudged
from arcforge_rl.orchestrator.process import child
from arcforge_rl.orchestrator.process import source as process_source
from arcforge_rl.orchestrator.process.child import Given
from arcforge_rl.rollouts.tasks import agents_of_trainer, has_models, training_environment
from support.both_orchestrators import runs_of_both
from support.orchestrated import build_learnable
from support.policies import save_scorer

__all__ = ["learnable", "no_drawing", "policy", "small_run"]
APART = ("collection=async", "collection.orchestrator=process", "engine=arcforge", "engine.url=http://127.0.0.1:9")
USER = "+agents.user={engine: paged, init: demo}"
REWARD = """[[reward]]
weights = { verified = 1, reward_model = 1, length = 1 }
[component.length]
reward = "words"
options = { least = 0, most = 50 }
"""


def test_the_trainer_asks_the_agents_of_held_out_tasks_where_the_others_play_apart(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyEnvironment, "agents", ("user",), raising=False)
    judge, heldout = "+agents.judge={url: http://127.0.0.1:9}", CopyEnvironment.__new__(CopyEnvironment)
    for options, names in (
        ((), {"user", "judge"}),
        (APART, {"user"}),
        ((*APART, "evaluation.tasks=0"), set()),
    ):
        config = small_run(*options, USER, judge)
        assert {*agents_of_trainer(config, heldout)} == names and has_models(config)
    assert not has_models(small_run(*APART, judge))


def test_a_reward_model_is_read_where_verdicts_are_given_and_agents_stay_known(
    small_run: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyEnvironment, "agents", ("user",), raising=False)
    (tmp_path / "reward.toml").write_text(REWARD)
    (save_scorer(tmp_path / "scorer") / "tokenizer.json").unlink()
    config = small_run(f"reward_model.checkpoint={tmp_path / 'scorer'}", f"rewards={tmp_path / 'reward.toml'}")
    found: Any = training_environment(config, None)  # no reward model is read, or its tokenizer were missed
    assert found.environment.model is None and found.agents == ("user",) and has_models(config)
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json: it is no reward model"):
        training_environment(config, Ops())


def test_no_verifier_runs_in_the_process_where_no_reward_counts(
    small_run: Compose, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "AsynchronousSource", lambda config, sampler: sampler)
    monkeypatch.setattr(child, "build_engine", lambda config, model: None)
    config = small_run(*APART)
    for unjudged in (False, True):
        sampler: Any = child.build_source(Given(config, policy, 64, (), {}, unjudged))
        assert isinstance(sampler.training, Unjudged) == unjudged


@pytest.mark.nightly(reason="two runs on a server, one with an orchestrator's process")
def test_learned_and_hybrid_rewards_of_a_process_end_in_the_weights_of_a_thread(
    small_run: Compose, tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_source, "build_source", build_learnable)
    read, init = [], RewardModel.__init__
    monkeypatch.setattr(RewardModel, "__init__", lambda model, *given: read.append(given) or init(model, *given))
    (tmp_path / "reward.toml").write_text(REWARD)
    options = (f"rewards={tmp_path / 'reward.toml'}", f"reward_model.checkpoint={save_scorer(tmp_path / 'scorer')}")
    folders = runs_of_both(small_run, policy, tmp_path, options)
    first, second = map(weights, folders)
    assert all(torch.equal(first[name], second[name]) for name in first)
    texts = [(folder / "rollouts.jsonl").read_text() for folder in folders]
    assert texts[0] == texts[1] and len(read) == 1, "the trainer's process reads no reward model that it does not ask"
    rewards = [json.loads(line)["rewards"] for line in texts[1].splitlines()]
    assert all(0 < one["reward_model"] < 1 for one in rewards) and len({one["reward_model"] for one in rewards}) > 1
    for row in metrics(folders[1]):
        assert float(row["reward_length_failures"]) == 0 and float(row["reward_length_seconds"]) > 0
