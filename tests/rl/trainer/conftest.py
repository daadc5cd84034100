from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.compose import compose_config
from arcforge_core.episodes.copy import ExactEnvironment
from arcforge_core.model.build import build_model
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_config, small_tokenizer
from arcforge_rl.configs.learning import RlConfig
from support.faulty_engine import registered
from support.policies import reward_even, save_policy

Compose = Callable[..., RlConfig]


def small_overrides(policy: Path, output_dir: Path) -> list[str]:
    """Overrides of a run of seconds."""
    return [
        f"init={policy}",
        "environment=copy",
        "engine=simple",
        "optimizer=torch_adamw",
        "optimizer.lr=0.003",
        "hardware=torch_cpu",
        f"output_dir={output_dir}",
        "rollout.groups=4",
        "rollout.group_size=4",
        "rollout.max_new_tokens=3",
        "evaluation.tasks=4",
        "evaluation.samples=2",
        "trainer.max_steps=3",
        "trainer.threads=1",
        "trainer.micro_batch_tokens=128",
    ]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to begin with."""
    return save_policy(tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture(scope="session")
def sparse_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose attention selects 8 keys; without ReLU no scores are exactly equal."""
    pytest.importorskip("arcforge_attention")
    folder = tmp_path_factory.mktemp("policy") / "sparse"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        attention = registry().get("attention", "dsa").load_schema()(index_relu=False)
        model = build_model(small_config(vocab_size=TOKENIZER_SIZE), attention)
    save_pretrained(model, folder, small_tokenizer())
    return folder


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report takes a second to draw."""
    monkeypatch.setattr("arcforge_rl.trainer.run.write_report", lambda run_dir: run_dir / "report.html")


@pytest.fixture
def learnable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance earns rewards in ``environment=copy``."""
    monkeypatch.setattr(ExactEnvironment, "exact", reward_even)


@pytest.fixture
def faulty() -> Iterator[None]:
    """``engine=faulty``."""
    with registered():
        yield


@pytest.fixture
def small_run(tmp_path: Path, policy: Path, learnable: None) -> Compose:
    """Composes a run of seconds."""

    def compose(*overrides: str) -> RlConfig:
        return compose_config("rl", RlConfig, [*small_overrides(policy, tmp_path / "outputs"), *overrides])

    return compose
