"""Training of reward models: folders that load again, resumption, bad input, and planted preferences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from arcforge_core.chat.openai import messages_from_openai
from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.checkpoint.scalar import HEAD
from arcforge_core.config.compose import compose_config
from arcforge_core.config.reward import RewardTrainConfig
from arcforge_core.console.result import Result
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.files.find import find_checkpoint
from arcforge_core.model.scalar import ScalarModel
from arcforge_core.ops.dispatch import default_ops
from arcforge_core.testing.small_models import small_model, small_tokenizer
from arcforge_core.train.report.data import read_run
from arcforge_core.train.reward import run as module
from arcforge_core.train.reward.page import page_of
from arcforge_core.train.step import NonFiniteError
from support.policies import save_policy, save_scorer
from support.preferences import planted, write_pairs

Train = Callable[..., Result]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture
def train(tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    monkeypatch.setattr(module, "write_report", lambda run_dir: run_dir / "report.html")
    pairs = write_pairs(tmp_path / "pairs.jsonl", planted(40, 0))

    def run(*options: str) -> Result:
        given = (
            f"init={policy}", f"pairs.files=[{pairs}]", "hardware=torch_cpu", "trainer.threads=1", "logger=[]",
            "trainer.max_steps=2", "trainer.batch=4", "optimizer=torch_adamw", "schedule=constant",
            f"output_dir={tmp_path / 'out'}",
        )  # fmt: skip
        return module.train(compose_config("reward", RewardTrainConfig, [*given, *options]))

    return run


def score_of(folder: Path) -> float:
    messages = messages_from_openai([{"role": "user", "content": "x"}, {"role": "assistant", "content": "one yes"}])
    return RewardModel(find_checkpoint(folder), default_ops()).score(messages)


def test_a_run_is_a_reward_model_and_resumes(train: Train) -> None:
    found = train("trainer.eval_every=1", "optimizer.lr=0.01")
    checkpoint = find_checkpoint(found.dir)
    assert (checkpoint / HEAD).is_file() and (checkpoint / "tokenizer.json").is_file()
    first = score_of(found.dir)
    assert first != 0.0
    rows = (found.dir / "eval.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["step", "0", "1", "2"]
    summary = json.loads((found.dir / "summary.json").read_text())
    assert summary["training_pairs"] + summary["pairs"] == 40 and summary["steps"] == 2
    assert "ranked as labelled" in page_of(read_run(found.dir), [(9, 0.7, 0.8)]).render()
    whole = train("trainer.max_steps=4", "optimizer.lr=0.01")
    again = train(f"resume={found.dir}", "trainer.max_steps=4", "optimizer.lr=0.01")
    assert again.dir == found.dir and again.figures["steps"] == 4
    assert score_of(again.dir) == pytest.approx(score_of(whole.dir), abs=1e-5) != first, "as without a break"


def test_an_adapter_is_trained_beside_a_frozen_base(train: Train) -> None:
    found = train("adapter=lora", "adapter.rank=2", "optimizer.lr=0.01")
    checkpoint = find_checkpoint(found.dir)
    assert (checkpoint / "adapter_config.json").is_file() and (checkpoint / HEAD).is_file()
    assert score_of(found.dir) != 0.0


def test_one_pass_and_several_are_the_same_step(train: Train) -> None:
    """The gradient of a loss that is no mean over pairs does not depend on how they are packed."""
    options = ("objective.length_control=1", "objective.centring=0.01", "objective.margin=0.5", "optimizer.lr=0.01")
    scores = [score_of(train(*options, f"trainer.micro_batch_tokens={most}").dir) for most in (100_000, 1)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "refused"),
    [
        (("pairs.files=[]",), ConfigError, r"pairs\.files=\[\]"),
        (("pairs.files=[gone.jsonl]",), DataError, "no such file"),
        (("pairs.max_tokens=100000",), ConfigError, r"pairs\.max_tokens=100000: must be at most 128"),
        (("pairs.chosen=best",), DataError, r"no pair to train on \(40 left out: no field 'best'\)"),
        (("trainer.max_steps=null",), ConfigError, r"trainer\.max_steps"),
        (("objective.centring=-1",), ConfigError, r"objective\.centring=-1"),
        (("adapter=lora", "trainer.trainable=[norm]"), ConfigError, r"trainer\.trainable"),
    ],
)
def test_bad_options_are_named(train: Train, options: tuple[str, ...], error: type[Exception], refused: str) -> None:
    with pytest.raises(error, match=refused):
        train(*options)


def test_a_tokenizer_of_another_model_is_refused(train: Train, tmp_path: Path) -> None:
    tokenizer, folder = small_tokenizer(), tmp_path / "other"
    save_pretrained(small_model(vocab_size=tokenizer.vocab_size - 8), folder, tokenizer)
    with pytest.raises(ConfigError, match=r"init='.*other': its tokenizer has \d+ ids, its model"):
        train(f"init={folder}")


def test_scores_that_are_not_finite_end_the_run(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ScalarModel, *given: object) -> torch.Tensor:
        return torch.full((8,), float("nan"), requires_grad=True)

    folder = save_scorer(tmp_path / "scorer")
    monkeypatch.setattr(ScalarModel, "forward", broken)
    with pytest.raises(NonFiniteError, match=r"step 1: a score is not finite"):
        train(f"init={folder}", "pairs.heldout=0.0")


LEARNT = (
    "optimizer.lr=3e-3",
    "trainer.max_steps=240",
    "trainer.batch=32",
    "pairs.heldout=0.3",
    "trainer.eval_every=500",
)


@pytest.mark.nightly
def test_planted_preferences_are_learnt_to_the_ceiling(train: Train, tmp_path: Path) -> None:
    """A tenth of the labels is exchanged: 90% is the ceiling, and the confidence that is right."""
    pairs = write_pairs(tmp_path / "noisy.jsonl", planted(3000, 0, flipped=0.1))
    found = train(*LEARNT, f"pairs.files=[{pairs}]").figures
    assert float(found["accuracy"]) > 0.88 and float(found["calibration_error"]) < 0.05


@pytest.mark.nightly
def test_length_control_halves_the_correlation_with_length(train: Train, tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "long.jsonl", planted(3000, 0, length_bias=0.4))
    plain, controlled = (
        train(*LEARNT, f"pairs.files=[{pairs}]", f"objective.length_control={weight}").figures for weight in (0.0, 1.0)
    )
    assert float(plain["length_correlation"]) > 0.2
    assert abs(float(controlled["length_correlation"])) < float(plain["length_correlation"]) / 2
    assert float(controlled["accuracy"]) > 0.7
