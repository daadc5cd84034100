"""Runs that leave rollouts out by a metric, and spread groups over the updates of a step."""

from typing import Any

import pytest
from tests.rl.trainer.conftest import Compose

from arcforge_core.errors import ConfigError
from arcforge_rl.configs.learning import PolicyTrainerConfig, RolloutConfig
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.run import run
from support.rl_runs import metrics


def test_a_run_trains_on_what_is_left_in_spread_batches(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[set[str]] = []
    update = PolicyModule._update

    def watched(module: PolicyModule, traces: Any, scale: float) -> dict[str, float]:
        batches.append({trace.group_id for trace in traces})
        return update(module, traces, scale)

    monkeypatch.setattr(PolicyModule, "_update", watched)
    options = ("rollout.thin_by=exact", "rollout.thin_share=0.5", "trainer.updates=2", "trainer.spread_groups=true")
    found = run(small_run(*options, "trainer.max_steps=1", "rollout.groups=6", "rollout.group_size=8"))
    (row,) = metrics(found.dir)
    assert int(row["thinned"]) > 0 and len(batches) == 2 and batches[0] == batches[1]


def test_a_run_refuses_what_it_cannot_follow(small_run: Compose) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.thin_by='trivial': must be a metric of the environment: exact"):
        run(small_run("rollout.thin_by=trivial"))
    with pytest.raises(ConfigError, match=r"rollout\.thin_share=1\.5"):
        RolloutConfig(thin_share=1.5)
    with pytest.raises(ConfigError, match=r"trainer\.spread_groups=True: must be false with trainer\.updates=1"):
        PolicyTrainerConfig(spread_groups=True)
