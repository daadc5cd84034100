"""The gap between the engine's probabilities and the trainer's ends a run, and unstable selections widen it."""

from pathlib import Path
from typing import Any

import pytest
from tests.rl.trainer.conftest import Compose

from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.ops.hardware import build_hardware
from arcforge_rl.trainer import module, weight_sync
from arcforge_rl.trainer import run as run_module
from arcforge_rl.trainer.run import run
from support.rl_runs import metrics
from support.unstable_selection import UnstableSelection

FAULTY = ("engine=faulty", "trainer.max_gap=100")


@pytest.mark.usefixtures("faulty")
def test_the_gap_to_the_engine_ends_a_run(small_run: Compose) -> None:
    with pytest.raises(ArcforgeError, match=r"step 1: trainer and engine disagree by .* trainer\.max_gap is 1e-12"):
        run(small_run("trainer.max_gap=1e-12"))
    noisy = run(small_run(*FAULTY, "engine.noise=0.1", "trainer.max_steps=2"))
    assert all(float(row["logprob_gap"]) > 1e-3 for row in metrics(noisy.dir))
    with pytest.raises(ArcforgeError, match=r"trainer\.max_gap is 0\.0001"):
        run(small_run("engine=faulty", "engine.noise=0.1"))
    misread = run(small_run(*FAULTY, "engine.logprob_noise=0.1"))
    assert all(float(row["logprob_gap"]) == pytest.approx(0.08, abs=0.02) for row in metrics(misread.dir))


@pytest.mark.nightly(reason="four runs")
@pytest.mark.usefixtures("faulty")
def test_an_unstable_selection_widens_the_gap(small_run: Compose, sparse_policy: Path) -> None:
    def gaps(*options: str) -> list[float]:
        found = run(small_run(f"init={sparse_policy}", "rollout.drop_equal=false", *options))
        return [float(row["logprob_gap"]) for row in metrics(found.dir)]

    assert max(gaps()) < 1e-6
    assert max(gaps(*FAULTY, "engine.topk_bits=24")) < 1e-6  # no two scores are that near
    assert min(gaps(*FAULTY, "engine.topk_bits=3")) > 1e-3
    with pytest.raises(ArcforgeError, match=r"trainer\.max_gap is 0\.0001"):
        gaps("engine=faulty", "engine.topk_bits=3")


@pytest.mark.usefixtures("faulty")
def test_an_unstable_selection_depends_on_the_requests_alone(
    small_run: Compose, sparse_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_run(f"init={sparse_policy}", *FAULTY, "engine.topk_bits=3")
    module, _ = run_module.build(config, run_module.build_algorithm(config), build_hardware(config.hardware))
    sampler = module.sampler
    seeds: list[str] = []
    reseed = UnstableSelection.reseed

    def noted(selection: UnstableSelection, seed: str) -> None:
        seeds.append(seed)
        reseed(selection, seed)

    monkeypatch.setattr(UnstableSelection, "reseed", noted)

    def seeds_of_step(step: int) -> list[str]:
        seeds.clear()
        sampler.take(step)
        return [*seeds]

    def logprobs() -> list[list[float]]:
        return [b.logprobs.tolist() for group in sampler.evaluate() for of in group for b in of.trace.branches]

    first = logprobs()
    once, other, again = (seeds_of_step(step) for step in (1, 2, 1))
    assert once[0] == again[0] and not {*once} & {*other}
    assert logprobs() == first, "an evaluation does not depend on the steps before it"


@pytest.mark.usefixtures("faulty")
def test_an_unstable_selection_needs_an_indexer_in_this_process(
    small_run: Compose, sparse_policy: Path, policy: Path
) -> None:
    pytest.importorskip("arcforge_serving")
    bits = ("engine=faulty", "engine.topk_bits=8")
    with pytest.raises(ConfigError, match=r"engine\.topk_bits=8: must be null: attention=reference"):
        run(small_run(*bits))
    with pytest.raises(ConfigError, match=r"engine\.topk_bits=8: must be null with engine\.of=vllm"):
        run(small_run(*bits, f"init={sparse_policy}", "engine.of=vllm"))


def test_the_limit_of_the_gap_concerns_tokens_of_the_present_weights(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are handed over every third step: those in between are sampled by older ones, which is no fault."""

    def late(model: Any, engine: Any, version: int, reset: bool = False) -> None:
        if version % 3 == 0:
            weight_sync.hand_over(model, engine, version, reset)

    monkeypatch.setattr(module, "hand_over", late)
    rows = metrics(run(small_run("trainer.max_steps=6", "optimizer.lr=0.1", "algorithm=double_sided")).dir)
    stale = [float(row["stale"] or 0) if row["entropy"] else None for row in rows]
    assert {0.0, 1.0} <= set(stale)
    drifts = [float(row["logprob_drift"]) for row in rows if row["logprob_drift"]]
    assert max(drifts) > 1e-3, "more than any limit in fp32"
    assert all(float(row["logprob_gap"]) < 1e-5 for row in rows if row["logprob_gap"])
