from collections.abc import Callable
from pathlib import Path

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.environments.copy import ExactEnvironment
from arcforge_core.testing.policies import reward_even, save_policy
from arcforge_rl.configs_learning import RlConfig

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


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report takes a second to draw."""
    monkeypatch.setattr("arcforge_rl.learning.run.write_report", lambda run_dir: run_dir / "report.html")


@pytest.fixture
def learnable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance earns rewards in ``environment=copy``."""
    monkeypatch.setattr(ExactEnvironment, "exact", reward_even)


@pytest.fixture
def small_run(tmp_path: Path, policy: Path, learnable: None) -> Compose:
    """Composes a run of seconds."""

    def compose(*overrides: str) -> RlConfig:
        return compose_config("rl", RlConfig, [*small_overrides(policy, tmp_path / "outputs"), *overrides])

    return compose
