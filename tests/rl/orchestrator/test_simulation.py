"""The virtual clock: what can be computed by hand, what must not depend on the schedule, and what asynchrony gains."""

from dataclasses import replace

import pytest

from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.simulation import Machine, Simulation, Workload

ONE = Workload(turns=(1, 1), tokens=(50, 50))
MACHINE = Machine(step_seconds=0.01, sequence_seconds=0.001, train_seconds=3.0, push_seconds=0.5)


def test_one_rollout_takes_what_its_tokens_take() -> None:
    """Sampling, training and the push follow each other."""
    found = Simulation(Rules(1, 1, eta=0.0), ONE, MACHINE).run(10)
    assert found.step_seconds == pytest.approx(50 * 0.011 + 3.0 + 0.5)
    assert found.trainer_busy == pytest.approx(3.0 / found.step_seconds)
    assert found.engines_busy == pytest.approx(50 * 0.011 / found.step_seconds)
    assert (found.staleness, found.most_staleness, found.trained_share) == (0.0, 0, pytest.approx(1.0))


def test_rollouts_can_be_those_of_a_plan() -> None:
    """Turns and latencies of each rollout as they are given: the slower one decides."""
    plan = Workload(plan=lambda start: ([10, 20], [5.0 * (start.number + 1)]))
    found = Simulation(Rules(1, 2, eta=0.0), plan, replace(MACHINE, sequence_seconds=0.0)).run(10)
    assert found.step_seconds == pytest.approx(30 * 0.01 + 10.0 + 3.0 + 0.5)


def test_sequences_share_an_engine() -> None:
    """Eight of the same length end together, eight times a sequence's part later."""
    found = Simulation(Rules(2, 4, eta=0.0), ONE, MACHINE).run(10)
    assert found.step_seconds == pytest.approx(50 * (0.01 + 8 * 0.001) + 3.0 + 0.5)
    apart = Simulation(Rules(2, 4, eta=0.0), ONE, replace(MACHINE, engines=100)).run(10)
    assert apart.step_seconds < found.step_seconds


def test_asynchrony_hides_the_shorter_of_both_phases() -> None:
    """One engine without tools: a step takes as long as its slower half. With a shared device nothing is gained."""
    slow_trainer = Simulation(Rules(1, 4, eta=2.0), ONE, MACHINE).run(30)
    assert slow_trainer.step_seconds == pytest.approx(3.0, rel=0.02) and slow_trainer.trainer_busy > 0.97
    slow_engine = Simulation(Rules(1, 4, concurrency=4), replace(ONE, tokens=(500, 500)), MACHINE).run(30)
    assert slow_engine.step_seconds == pytest.approx(500 * 0.014 + 0.5, rel=0.1) and slow_engine.engines_busy > 0.9
    shared = Simulation(Rules(1, 4, eta=2.0), ONE, replace(MACHINE, shares=True)).run(30)
    assert shared.step_seconds > 3.3


def test_the_schedules_of_the_issue() -> None:
    """Tools with a long tail, as in benchmarks/async_simulation.py: asynchrony gains, and its staleness has a bound."""
    both, apart = Machine(engines=2, train_seconds=2.0, shares=True), Machine(engines=1, train_seconds=4.0)
    work, rules = Workload(), Rules(4, 4, eta=0.0, max_staleness=0, concurrency=1 << 20)
    barrier = Simulation(rules, work, both).run(40)
    sampled_over = Simulation(replace(rules, oversample=1.5), work, both).run(40)
    off = Simulation(replace(rules, eta=1.0, max_staleness=1, whole_batches=True), work, apart).run(40)
    free = Simulation(Rules(4, 4, eta=2.0, max_staleness=8, concurrency=64), work, apart).run(40)
    assert free.step_seconds < sampled_over.step_seconds < barrier.step_seconds
    assert free.step_seconds < 0.5 * barrier.step_seconds
    assert sampled_over.trained_share < 0.9 and barrier.trained_share == pytest.approx(1.0, abs=1e-6)
    assert off.most_staleness == 1 and off.staleness > 0.9
    assert 1.0 < free.staleness <= 2.0 and free.most_staleness <= 8
    bound = Simulation(Rules(4, 4, eta=4.0, max_staleness=3, concurrency=64), work, apart).run(40)
    assert bound.most_staleness <= 3 and bound.counts["dropped_stale"] > 0


def test_a_run_is_the_same_again_and_survives_failures() -> None:
    work = Workload(failing=0.3, equal=0.2)
    first, again = (Simulation(Rules(4, 4, concurrency=32), work, Machine(engines=3), seed=3).run(20) for _ in range(2))
    assert first == again
    assert first.counts["failed_sandbox"] > 0 and first.counts["dropped_all_equal"] > 0
    assert (
        first.step_seconds
        > Simulation(Rules(4, 4, concurrency=32), Workload(), Machine(engines=3), 3).run(20).step_seconds
    )
