"""Fixtures of training runs."""

import pytest

from arcforge_core.train import run as run_module


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring matrix products takes as long as two training steps."""
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e11)
