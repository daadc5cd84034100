"""PPO's four models in the synchronous loop, and their list."""

from pathlib import Path

import pytest
import torch

from arcforge_core.checkpoint.scalar import load_scalar, save_scalar
from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_core.tokenizer.tokenizer import train_tokenizer
from arcforge_rl.trainer.figures import explained_variance
from arcforge_rl.trainer.run import run
from support.policies import save_scorer

from .conftest import Compose
from .test_run import metrics

PPO = ("algorithm=ppo", "critic.model=separate", "critic.lr=0.003")


@pytest.mark.slow(reason="a run with four models")
def test_four_models_are_listed_and_the_rewards_are_mixed(
    small_run: Compose, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (f"reward_model.checkpoint={save_scorer(tmp_path / 'reward')}", "reward_model.weight=0.25")
    critic = f"critic.init={save_scorer(tmp_path / 'critic', seed=2)}"
    found = run(small_run(*PPO, *options, critic, "algorithm.kl=0.01"))
    printed = capsys.readouterr().out
    model = small_model(vocab_size=TOKENIZER_SIZE)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert f"policy: {count:,} parameters, " in printed and f"reference: {count:,} parameters, " in printed
    for name in ("critic", "reward model"):
        assert f"\n{name}: {count + model.config.hidden_size + 1:,} parameters, " in printed
    assert printed.count("gradients and moments") == 2
    rows = metrics(found.dir)
    for row in rows:
        mixed = 0.75 * float(row["reward_verified"]) + 0.25 * float(row["reward_reward_model"])
        assert float(row["reward"]) == pytest.approx(mixed, abs=1e-6)
        assert 0.0 < float(row["reward_reward_model"]) < 1.0 and float(row["kl_loss"]) >= 0.0
        assert float(row["critic_grad_norm"]) > 0
    assert float(rows[0]["explained_variance"]) != 0.0, "the critic began with the head of critic.init"


def test_a_score_that_is_no_number_is_no_reward(small_run: Compose, tmp_path: Path) -> None:
    scalar = load_scalar(save_scorer(tmp_path / "reward"))
    scalar.head.bias.data.fill_(float("nan"))
    save_scalar(scalar, tmp_path / "nan", small_tokenizer())
    with pytest.raises(ArcforgeError, match="verifier: the reward model's score is nan"):
        run(small_run(*PPO, f"reward_model.checkpoint={tmp_path / 'nan'}", "evaluation.tasks=0"))


def test_models_that_do_not_fit_are_one_line_before_work(small_run: Compose, tmp_path: Path) -> None:
    other = save_scorer(tmp_path / "other", tokenizer=train_tokenizer(["four five"] * 4, TOKENIZER_SIZE))
    with pytest.raises(ConfigError, match=r"critic\.init=.*has another tokenizer than the policy"):
        run(small_run(*PPO, f"critic.init={other}"))
    with pytest.raises(CheckpointError, match=r"reward_model\.checkpoint=nowhere: neither a model"):
        run(small_run(*PPO, "reward_model.checkpoint=nowhere"))
    with pytest.raises(ConfigError, match=r"critic\.model='separate': algorithm=grpo has no critic"):
        run(small_run("algorithm=grpo", "critic.model=separate"))


def test_explained_variance_of_known_values() -> None:
    branch = Branch("b", [5, 6, 7, 8], [False, True, True, True], [-1.0] * 4, [0] * 4)
    trace = Trace("t", "g", "r", [branch], {"reward": 1.0})
    branch.streams = {"returns": torch.tensor([9.0, 0.0, 1.0, 2.0]), "values": torch.tensor([7.0, 0.5, 1.5, 2.5])}
    assert explained_variance([trace]) == {"explained_variance": pytest.approx(1.0)}
    branch.streams["values"] = torch.tensor([0.0, 2.0, 1.0, 0.0])
    assert explained_variance([trace])["explained_variance"] == pytest.approx(1.0 - 4.0)
    branch.streams["returns"] = torch.ones(4)
    assert explained_variance([trace]) == {}
