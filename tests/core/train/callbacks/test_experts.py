import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from arcforge_core.train.callbacks.experts import MOST, ExpertWarning, uneven
from arcforge_core.train.callbacks.throughput import ThroughputMetrics
from arcforge_core.train.module import TrainingModule


def test_the_busiest_expert_is_named_above_the_limit() -> None:
    even = torch.full((16,), 1 / 16)
    assert uneven({1: even}) is None
    uneven_E = even.clone()
    uneven_E[3], uneven_E[5] = 5 / 16, 0.0
    assert "expert 3 of layer 2 gets 5.0 times its fair share of the tokens, expert 5 0.00 times" in str(
        uneven({1: even, 2: uneven_E})
    )
    assert uneven({1: torch.tensor([MOST / 16, 1 - MOST / 16])}) is None
    assert uneven({1: torch.full((4,), torch.nan)}) is None, "a layer that saw no token"


class Module(TrainingModule):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.progress: Any = SimpleNamespace(step=0)


@pytest.mark.parametrize(("first", "steps"), [(10, [40]), (30, [30, 60])])
def test_the_console_warns_once_per_collapse_and_not_in_the_first_steps(
    first: int, steps: list[int], tmp_path: Path
) -> None:
    out, metrics, module = io.StringIO(), ThroughputMetrics(tmp_path, 10, lambda: 1.0), Module()
    callback = ExpertWarning(Console(file=out, width=200), metrics)
    collapsed = torch.tensor([0.97, 0.01, 0.01, 0.01])
    trainer: Any = SimpleNamespace(is_global_zero=True)
    for number, load in enumerate([collapsed, collapsed, torch.full((4,), 0.25), collapsed]):
        module.progress.step = first + 10 * number
        metrics.shares = {1: load.clone()}
        for _ in range(2):  # a second step without a new row
            callback.on_train_batch_end(trainer, module, None, None, 0)
    beginnings = [line.partition(" times its fair share")[0] for line in out.getvalue().splitlines()]
    assert beginnings == [f"warning: step {step}: expert 0 of layer 1 gets 3.9" for step in steps]


def test_metrics_have_the_load_of_the_busiest_expert(tmp_path: Path) -> None:
    metrics = ThroughputMetrics(tmp_path, 10, lambda: 1.0)
    metrics.seconds = 1.0
    assert "busiest_expert" not in metrics.columns()
    metrics.loads = {1: torch.tensor([3.0, 1.0]), 2: torch.tensor([2.0, 2.0]), 3: torch.tensor([0.0, 0.0])}
    assert metrics.columns()["busiest_expert"] == 1.5
