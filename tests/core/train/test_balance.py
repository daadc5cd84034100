"""The recipe `mini` keeps its experts evenly loaded from early on; the paper's rate of the router bias cannot there."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.golden import golden_config, losses_of

SMALL = (
    "experiment=mini", "model.hidden_size=64", "model.intermediate_size=128", "model.moe_intermediate_size=32",
    "model.num_hidden_layers=3", "model.mtp.depths=0",
)  # fmt: skip
STEPS, SETTLED, WINDOW, EXPERTS = 80, 30, 10, 16


def busiest(folder: Path, *overrides: str) -> NDArray[np.float64]:
    """Returns the largest load of an expert, in units of the fair share, for each window of steps after the first."""
    config = golden_config([*SMALL, *overrides], folder)
    config.trainer.max_steps, config.trainer.micro_batch_tokens = STEPS, 1024
    loads = np.array(losses_of(config, folder)["loads"], dtype=np.float64)[SETTLED:]
    windows_NLE = loads.reshape(-1, WINDOW, loads.shape[1]).sum(axis=1).reshape(-1, 2, EXPERTS)
    share: NDArray[np.float64] = (windows_NLE / windows_NLE.mean(axis=-1, keepdims=True)).max(axis=(1, 2))
    return share


@pytest.mark.nightly(reason="eighty steps of the recipe")
def test_experts_of_the_recipe_mini_are_even_after_the_first_steps(tmp_path: Path) -> None:
    assert busiest(tmp_path).max() < 2.0
    assert busiest(tmp_path, "model.router_bias_rate=0.001").max() > 3.0
