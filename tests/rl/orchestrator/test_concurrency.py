"""Fewer rollouts run as the engine's cache fills, more as it empties."""

from __future__ import annotations

import pytest
from tests.rl.orchestrator.test_source import ASYNC
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run
from tests.rl.trainer.test_run import metrics

from arcforge_core.contracts.serving_engine import EngineStats
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.collection import AsynchronousConfig
from arcforge_rl.orchestrator import source
from arcforge_rl.orchestrator.concurrency import CacheControl, cache_use
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.scheduler import Again, Cancel, Scheduler
from arcforge_rl.trainer.run import run

__all__ = ["learnable", "no_drawing", "policy", "small_run"]


def stats(use: float, preemptions: int = 0, kept: int = 0) -> EngineStats:
    return EngineStats(0, 0, 1000, 1000 - kept - round(1000 * use), kept, preemptions=preemptions)


def test_pages_that_can_be_evicted_are_not_in_use() -> None:
    assert cache_use(stats(0.25, kept=700)) == pytest.approx(0.25)
    assert cache_use(EngineStats(3, 0)) == 0.0


def test_the_number_follows_the_use_of_the_cache() -> None:
    control = CacheControl(most=64, limit=8)
    assert control.observe(stats(0.5), running=8) == 0 and control.limit == 10
    assert control.observe(stats(0.5), running=3) == 0 and control.limit == 10, "it is not what holds them back"
    for _ in range(20):
        control.observe(stats(0.1), running=control.limit)
    assert control.limit == 64
    assert control.observe(stats(0.7), running=64) == 0 and control.limit == 64, "between the bounds it stays"
    assert control.observe(stats(0.85), running=64) == 0 and control.limit == 61
    assert control.observe(stats(0.95), running=61) == 6 and control.limit == 55
    assert control.observe(stats(0.95), running=1) == 0 and control.limit >= 1
    control = CacheControl(most=64, limit=20)
    assert control.observe(stats(0.1, preemptions=2), running=20) == 0 and control.limit == 19
    assert control.observe(stats(0.1, preemptions=2), running=19) == 0 and control.limit == 23, "no further one"


def test_the_youngest_make_room_and_start_again_without_a_failure() -> None:
    scheduler: Scheduler[str] = Scheduler(Rules(2, 2, concurrency=4, retries=0))
    starts = scheduler.starts()
    scheduler.limit = 2
    scheduler.make_room(2)
    first, again, second, again_too = scheduler.outcomes()
    assert isinstance(first, Cancel) and isinstance(second, Cancel)
    youngest = starts[::-1][:2]
    assert [(one.key, one.number) for one in (first, second)] == [(one.key, one.number) for one in youngest]
    assert all(isinstance(one, Again) and not one.failed for one in (again, again_too))
    assert scheduler.running == 2 and not scheduler.starts()
    scheduler.limit = 4
    assert [start.attempt for start in scheduler.starts()] == [2, 2] and scheduler.counts["retried"] == 0


def test_a_run_with_a_small_cache_adapts(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "OBSERVE", 0.02)
    options = ("collection.adaptive=true", "rollout.max_new_tokens=24", "collection.concurrency=40")
    rows = metrics(run(small_run(*ASYNC, *options, "engine.cache_tokens=512", "trainer.max_steps=6")).dir)
    limits = [int(float(row["concurrency"])) for row in rows]
    assert all(1 <= limit <= 40 for limit in limits) and limits[-1] != 4, "it began with a group of four"
    assert all(0.0 <= float(row["cache_use"]) <= 1.0 for row in rows)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=r"collection\.status_port"):
        AsynchronousConfig(status_port=port)
