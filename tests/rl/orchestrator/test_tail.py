"""Asynchronous runs with requantised weights and drafts, which shorten rollouts; and the figures of such a run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run
from tests.rl.trainer.test_run import metrics

from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.model.adapt.quantised import quantised_state
from arcforge_rl.trainer.run import run
from arcforge_serving.engine.paged import PagedEngine
from support.policies import save_policy

from .test_source import ASYNC

__all__ = ["learnable", "no_drawing", "policy", "small_run"]
WIDE = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "q_lora_rank": 32, "v_head_dim": 32}
"""Sizes that can be quantised."""
FIGURES = {
    "staleness": [f"staleness_{when}_{what}" for when in ("put", "take") for what in ("mean", "max", *range(9))],
    "idle": ["trainer_idle", "engine_idle"],
    "correction": ["masked_low", "masked_high"],
    "mismatch and drift": ["logprob_gap", "logprob_gap_max", "logprob_drift", "stale"],
    "use": ["prefix_hits", "trained_per_sampled", "accepted_length"],
    "tail": ["rollout_p50", "rollout_p99"],
    "dropped and failed": ["all_right", "all_wrong", "all_equal", "nothing_sampled"],
}


@pytest.mark.slow(reason="a run with drafts")
def test_each_push_is_quantised_again_drafts_run_and_all_figures_are_written(
    small_run: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[tuple[int, dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    update = PagedEngine.update_weights

    def watched(engine: PagedEngine, state: dict[str, torch.Tensor], **given: Any) -> None:
        update(engine, state, **given)
        quantised = quantised_state(engine.model)
        assert quantised is not None and quantised.mode == "w8a8"
        pushed.append((engine.weight_version, quantised.of(state), dict(engine.model.state_dict())))

    monkeypatch.setattr(PagedEngine, "update_weights", watched)
    options = (f"init={save_policy(tmp_path / 'wide', **WIDE)}", "engine.weights=w8a8", "engine.draft_tokens=2")
    options += ("engine.drafting=always", "trainer.max_steps=5", "rollout.max_new_tokens=6")
    found = run(small_run(*ASYNC, *options))
    rows = metrics(found.dir)
    assert [version for version, *_ in pushed] == [1, 2, 3, 4, 5]
    for _, wanted, engines in pushed[-1:]:
        assert all(torch.equal(engines[name], tensor) for name, tensor in wanted.items())
    first, last = pushed[0][1], pushed[-1][1]
    assert any(name.endswith("_scale") and not torch.equal(first[name], last[name]) for name in first)
    gaps = [float(row["logprob_gap"]) for row in rows if row["logprob_gap"]]
    assert gaps and 1e-6 < max(gaps) < 0.5, "of rounding to eight bits, more than the trainer's and no other model's"
    assert max(float(row["accepted_length"]) for row in rows if row["accepted_length"]) > 1.0
    written = {name for row in rows for name, value in row.items() if value}
    for kind, names in FIGURES.items():
        assert not set(names) - written, kind


def test_failures_and_dropped_groups_are_counted_by_kind(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    play, played = CopyEnvironment.run, iter(range(10**6))

    async def faulty(environment: Any, task: Any, agents: Any) -> Any:
        if next(played) % 5 == 0:
            raise SandboxFault("gone")
        return await play(environment, task, agents)

    monkeypatch.setattr(CopyEnvironment, "run", faulty)
    rows = metrics(run(small_run(*ASYNC, "collection.retries=0", "rollout.group_size=2")).dir)
    total = {name: sum(float(row[name] or 0) for row in rows) for row in rows[:1] for name in row if row}
    assert total["failed_sandbox"] > 2 and total["dropped_sandbox"] > 0
