"""Idle shares and token counts of steps, on a clock that the test moves."""

from types import SimpleNamespace
from typing import Any

import pytest

from arcforge_core.episodes.asking import EngineUse
from arcforge_rl.rollouts import speed
from arcforge_rl.rollouts.speed import Speed


class Now:
    """A clock, and an engine whose counters the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = self.busy = 0.0
        self.counters = SimpleNamespace(
            prompt_tokens=0,
            cached_tokens=0,
            generated_tokens=0,
            steps=0,
            busy_seconds=0.0,
            drafts=0,
            accepted_by_position=[],
        )
        for module in (speed, __import__("arcforge_core.episodes.asking", fromlist=["time"])):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.seconds))

    def stats(self) -> Any:
        return self.counters

    def passes(self, seconds: float, busy: float = 0.0, tokens: int = 0, steps: int = 0) -> None:
        self.seconds, self.busy = self.seconds + seconds, self.busy + busy
        self.counters.generated_tokens += tokens
        self.counters.steps += steps


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    return Now(monkeypatch)


def test_a_step_lasts_from_batch_to_batch(now: Now) -> None:
    measured = Speed(now, lambda: now.busy)
    now.passes(100.0)  # until the trainer first waits
    now.passes(4.0, busy=3.0, tokens=90, steps=30)  # the first batch is waited for
    first = measured.step(60, waited=4.0, seconds=[1.0, 3.0, 2.0])
    assert first["trainer_idle"] == 1.0 and first["engine_idle"] == pytest.approx(0.25)
    assert (first["engine_tokens"], first["engine_batch"]) == (90, 3.0)
    assert first["trained_per_sampled"] == pytest.approx(60 / 90)
    assert (first["rollout_p50"], first["rollout_p99"]) == (2.0, 3.0)
    now.passes(10.0, busy=10.0, tokens=10, steps=10)  # ten seconds, of which the trainer worked eight
    second = measured.step(10, waited=2.0)
    assert second["trainer_idle"] == pytest.approx(0.2) and second["engine_idle"] == 0.0
    assert second["trained_per_sampled"] == pytest.approx(70 / 100) and "rollout_p50" not in second


def test_evaluations_are_left_out(now: Now) -> None:
    measured = Speed(now, lambda: now.busy)
    measured.begin()
    now.passes(1.0)
    with measured.aside():
        now.passes(100.0, busy=50.0, tokens=1000, steps=10)
    now.passes(1.0, busy=1.0, tokens=5, steps=5)
    found = measured.step(5, waited=1.0)
    assert found["trainer_idle"] == pytest.approx(0.5) and found["engine_idle"] == pytest.approx(0.5)
    assert found["trained_per_sampled"] == 1.0 and found["engine_tokens"] == 5


def test_tokens_of_all_processes_count(now: Now, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch has the rollouts of all; the other process's engine was busy half as long."""
    other = {"busy": 1.0, "prompt_tokens": 0.0, "cached_tokens": 0.0, "generated_tokens": 60.0, "steps": 10.0}
    other |= {"drafts": 10.0, "accepted": 5.0, "busy_seconds": 0.0}
    monkeypatch.setattr(speed, "gather", lambda value: [value, other])
    measured = Speed(now, lambda: now.busy)
    now.passes(4.0, busy=2.0, tokens=40, steps=10)
    found = measured.step(100, waited=4.0)
    assert found["trained_per_sampled"] == 1.0 and found["engine_batch"] == 5.0
    assert found["engine_idle"] == pytest.approx(1 - 1.5 / 4) and found["accepted_length"] == 1.5


def test_an_engine_that_is_asked_elsewhere_is_idle_as_it_says_itself(now: Now) -> None:
    measured = Speed(now, EngineUse().so_far)
    measured.begin()
    now.passes(4.0)
    now.counters.busy_seconds = 1.0
    assert measured.step(1, waited=0.5)["engine_idle"] == 0.75
    with measured.aside():
        now.passes(2.0)
        now.counters.busy_seconds = 3.0
    now.passes(2.0)
    now.counters.busy_seconds = 4.0
    assert measured.step(1, waited=0.5)["engine_idle"] == 0.5
    assert "engine_idle" not in Speed(object(), EngineUse().so_far).step(1, waited=0.5)


def test_an_engine_is_used_while_it_has_a_request(now: Now) -> None:
    use = EngineUse()
    now.passes(5.0)
    use.change(1)
    now.passes(1.0)
    use.change(1)
    now.passes(1.0)
    use.change(-2)
    now.passes(5.0)
    assert use.so_far() == use.seconds == 2.0
    use.change(1)
    now.passes(3.0)
    assert use.so_far() == 5.0
