import json
from pathlib import Path

import pytest
import torch

from arcforge_core import save_pretrained
from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl.configs import EnvConfig
from arcforge_rl.run import run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), folder, small_tokenizer())
    return folder


def config(tmp_path: Path, *overrides: str) -> EnvConfig:
    return compose_config("env", EnvConfig, [f"output_dir={tmp_path}", *overrides])


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_real_rollouts_are_written_with_the_models_own_logprobs(tmp_path: Path, checkpoint: Path) -> None:
    result = run(config(tmp_path, f"checkpoint={checkpoint}", "episodes=5", "rollouts=2", "hardware=torch_cpu"))
    written = rows(result.dir)
    assert len({row["rollout_id"] for row in written}) == result.metrics["rollouts"] == 10
    assert len({row["task_key"] for row in written}) == 5
    assert result.metrics["mean reward"] == sum(row["rewards"]["reward"] for row in written) / 10  # type: ignore[index]
    assert result.metrics["generated tokens"] == sum(len(row["turns"][0]["token_ids"]) for row in written)  # type: ignore
    assert result.metrics["tokens/s"] > 0
    model = small_model(vocab_size=TOKENIZER_SIZE)
    for row in written:
        (turn,) = row["turns"]  # type: ignore[misc]
        prompt, ids = turn["prompt_ids"], turn["token_ids"]
        logprobs = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)  # type: ignore
        wanted = logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(turn["logprobs"]), wanted, atol=1e-5, rtol=1e-5)
        assert turn["weight_version"] == 0
        assert set(row["reasons"]) == set(row["rewards"])  # type: ignore[call-overload]


def test_same_seed_gives_the_same_rollouts(tmp_path: Path, checkpoint: Path) -> None:
    first, second, other = (
        run(config(tmp_path, f"checkpoint={checkpoint}", "episodes=4", f"seed={seed}")).dir for seed in (1, 1, 2)
    )
    assert first != second
    assert rows(first) == rows(second)
    assert rows(first) != rows(other)


@pytest.mark.parametrize("environment", ["arithmetic", "copy"])
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("noop", 0.0)])
def test_environments_are_checked_without_a_model(
    tmp_path: Path, environment: str, agent: str, reward: float, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(config(tmp_path, f"agent={agent}", f"environment={environment}", "episodes=3"))
    assert result.metrics["mean reward"] == reward
    assert "tokens/s" not in result.metrics
    assert [row["turns"] for row in rows(result.dir)] == [[]] * 3
    assert str(result.dir / "rollouts.jsonl") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "agent=model needs a folder"),
        (["agent=oracle", "checkpoint=here"], "uses no model"),
        (["agent=orakel"], "did you mean 'oracle'"),
        (["agent=noop", "episodes=0"], "episodes=0"),
        (["agent=noop", "rollouts=0"], "rollouts=0"),
        (["agent=noop", "max_new_tokens=0"], "max_new_tokens=0"),
        (["agent=noop", "temperature=-1"], "temperature=-1"),
        (["agent=noop", "environment.digits=0"], "environment.digits=0"),
        (["agent=noop", "environment=arithmetics"], "did you mean 'arithmetic'"),
    ],
)
def test_bad_configurations_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, *overrides)
    assert message in str(caught.value)


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        run(config(tmp_path, "checkpoint=nowhere"))


def test_unwritable_output_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArcforgeError, match="cannot write"):
        run(config(tmp_path / "file", "agent=noop"))
