"""Any order of events: nothing is trained twice, nothing is lost, no bound is exceeded, and progress is always made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arcforge_rl.orchestrator.group import GroupKey, repeat
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.scheduler import GROUP, SURPLUS, Batch, Cancel, Dropped, Scheduler, Start

Place = tuple[GroupKey, int]


class Loop(RuleBasedStateMachine):
    """A trainer and engines that do whatever hypothesis says; `check` compares all that is known with the bounds."""

    @initialize(
        threshold=st.integers(1, 3),
        size=st.integers(1, 5),
        eta=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        most=st.integers(0, 2),
        stale=st.sampled_from(["drop", "retry", "keep"]),
        concurrency=st.integers(1, 12),
        retries=st.integers(0, 2),
        oversample=st.sampled_from([1.0, 1.5]),
        whole=st.booleans(),
        push_every=st.integers(1, 2),
        refills=st.sampled_from([None, 0, 1]),
    )
    def begin(
        self,
        threshold: int,
        size: int,
        eta: float,
        most: int,
        stale: str,
        concurrency: int,
        retries: int,
        oversample: float,
        whole: bool,
        push_every: int,
        refills: int | None,
    ) -> None:
        most = max(most, push_every - 1)
        self.rules = Rules(threshold, size, eta, most, stale, concurrency, retries, oversample, whole, refills)
        self.left_out: set[GroupKey] = set()
        self.scheduler: Scheduler[Place] = Scheduler(self.rules, self.judge, self.judge_again)
        self.unlucky: set[GroupKey] = set()
        self.running: dict[Place, Start] = {}
        self.known: set[Place] = set()
        self.trained: Counter[Place] = Counter()
        self.dropped: dict[Place, str] = {}
        self.starts: Counter[Place] = Counter()
        self.yields: Counter[Place] = Counter()
        self.old: list[Start] = []
        self.training = False
        self.push_every = push_every

    def judge(self, key: GroupKey, results: Sequence[Place]) -> str | None:
        assert all(place[0] == key for place in results)
        return "equal" if hash(key) % 7 == 3 else None

    def judge_again(self, key: GroupKey, results: Sequence[Place]) -> str | None:
        return "learnt" if key in self.unlucky else None

    @rule()
    def start(self) -> None:
        for start in self.scheduler.starts():
            place = (start.key, start.number)
            assert place not in self.running and place not in self.dropped and not self.trained[place]
            self.running[place] = start
            self.known.add(place)
            self.starts[place] += 1
            assert start.attempt == self.starts[place] <= 1 + self.rules.retries + self.yields[place]
        self.follow()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans(), final=st.booleans(), lag=st.integers(-1, 2))
    def end(self, data: st.DataObject, fails: bool, final: bool, lag: int) -> None:
        place = data.draw(st.sampled_from(sorted(self.running)))
        start = self.running.pop(place)
        oldest = self.scheduler.active[start.key].members[start.number].oldest
        if fails:
            assert self.scheduler.failed(*vars(start).values(), "sandbox", final)
        else:
            assert self.scheduler.ended(*vars(start).values(), place, max(0, min(oldest + lag, self.scheduler.version)))
        self.old.append(start)
        self.follow()

    @rule(count=st.integers(0, 3))
    def make_room(self, count: int) -> None:
        before = self.scheduler.running
        youngest = list(self.running)[-count:] if count else []
        self.scheduler.make_room(count)
        assert self.scheduler.running == before - len(youngest)
        self.yields.update(youngest)
        self.follow()
        assert not set(youngest) & self.running.keys()

    @precondition(lambda self: self.old)
    @rule(data=st.data(), fails=st.booleans())
    def answer_twice(self, data: st.DataObject, fails: bool) -> None:
        start = data.draw(st.sampled_from(self.old))
        if self.running.get((start.key, start.number)) == start:
            return
        before = self.scheduler.running
        if fails:
            assert not self.scheduler.failed(*vars(start).values(), "late")
        else:
            assert not self.scheduler.ended(*vars(start).values(), (start.key, start.number), 0)
        assert self.scheduler.running == before

    @precondition(lambda self: not self.training)
    @rule(unlucky=st.booleans())
    def take(self, unlucky: bool) -> None:
        if unlucky and self.scheduler.ready:
            self.unlucky.add(min(self.scheduler.ready))
        batch = self.scheduler.take()
        if batch is not None:
            self.check_batch(batch)
            self.training = True
        self.follow()
        if batch is not None and self.rules.oversample > 1.0:
            assert not self.running and not self.scheduler.ready

    @precondition(lambda self: self.training)
    @rule()
    def finish_step(self) -> None:
        self.training = False
        self.scheduler.finished_step()
        if self.scheduler.trained % self.push_every == 0:
            self.scheduler.pushed(self.scheduler.trained)
        self.follow()

    @rule(slow=st.integers(0, 3))
    def rush(self, slow: int) -> None:
        """Trains two steps while the first `slow` of the rollouts that run stay where they are."""
        for _ in range(2):
            self.rush_step(slow)

    def rush_step(self, slow: int) -> None:
        self.start()
        kept = sorted(self.running)[:slow]
        for _ in range(60):
            for place in [place for place in sorted(self.running) if place not in kept]:
                start = self.running.pop(place)
                self.scheduler.ended(*vars(start).values(), place, self.scheduler.version)
            self.follow()
            if not self.training:
                self.take(False)
            if self.training:
                break
            self.start()
        if self.training:
            self.finish_step()

    def check_batch(self, batch: Batch[Place]) -> None:
        assert batch.step == self.scheduler.trained and len(batch.groups) <= self.rules.threshold
        assert len(batch.groups) == self.rules.threshold or self.rules.refills is not None
        for key, group in batch.groups.items():
            assert (
                sum(kept.copies for kept in group) == self.rules.group_size and 2 * len(group) > self.rules.group_size
            )
            for kept in group:
                assert kept.result == (key, kept.number)
                self.trained[kept.result] += 1
                assert self.rules.stale == "keep" or batch.step - kept.oldest <= self.rules.max_staleness

    def follow(self) -> None:
        for outcome in self.scheduler.outcomes():
            if isinstance(outcome, Cancel):
                start = self.running.pop((outcome.key, outcome.number))
                assert start.attempt == outcome.attempt
                self.old.append(start)
            elif isinstance(outcome, Dropped):
                for number, reason in outcome.reasons.items():
                    assert (outcome.key, number) not in self.dropped, "dropped twice"
                    self.dropped[outcome.key, number] = reason

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler, rules = self.scheduler, self.rules
        assert scheduler.running == len(self.running) <= rules.concurrency
        there = scheduler.taken * rules.threshold + len(scheduler.active) + len(scheduler.ready)
        assert there <= math.floor((rules.eta + scheduler.trained + rules.oversample) * rules.threshold)
        assert all(count == 1 for count in self.trained.values())
        assert not self.trained.keys() & self.dropped.keys()
        held = {(g.key, m.number) for g in [*scheduler.active.values(), *scheduler.ready.values()] for m in g.members}
        lost = self.known - held - self.trained.keys() - self.dropped.keys()
        assert not lost

    def teardown(self) -> None:
        """From any state, a batch is complete within a bounded number of events."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3):
            if self.training:
                self.finish_step()
            before = self.scheduler.taken
            for _ in range(2_000):
                self.start()
                self.check()
                if self.running:
                    start = self.running.pop(min(self.running))
                    place = start.key, start.number
                    self.scheduler.ended(*vars(start).values(), place, self.scheduler.version)
                    self.follow()
                self.take(False)
                if self.training:
                    break
            assert self.scheduler.taken == before + 1, "no batch"


TestLoop = pytest.mark.slow(reason="many orders of events")(Loop.TestCase)
TestLoop.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def played(scheduler: Scheduler[Any], starts: Sequence[Start], oldest: int = 0) -> None:
    for start in starts:
        assert scheduler.ended(start.key, start.number, start.attempt, start.number, oldest)


def test_without_staleness_groups_are_named_as_the_synchronous_loop_names_them() -> None:
    """Step and number, replacements of dropped groups included; the next step begins when the weights are there."""
    scheduler: Scheduler[int] = Scheduler(
        Rules(threshold=3, group_size=2, eta=0.0), lambda key, results: "equal" if key == (0, 1) else None
    )
    first = scheduler.starts()
    assert [(start.key, start.number) for start in first] == [((0, n), m) for n in range(3) for m in range(2)]
    played(scheduler, first)
    (again, _) = second = scheduler.starts()
    assert again.key == (0, 3)
    played(scheduler, second)
    assert scheduler.starts() == []
    batch = scheduler.take()
    assert batch is not None and list(batch.groups) == [(0, 0), (0, 2), (0, 3)]
    assert scheduler.starts() == [], "the weights are not there yet"
    scheduler.finished_step()
    scheduler.pushed(1)
    assert {start.key.step for start in scheduler.starts()} == {1}


def test_the_oldest_groups_are_trained_first_and_late_ones_cancelled() -> None:
    scheduler: Scheduler[int] = Scheduler(Rules(threshold=1, group_size=1, eta=3.0, max_staleness=2))
    slow, *others = scheduler.starts()
    played(scheduler, others)
    for step in range(3):
        batch = scheduler.take()
        assert batch is not None and batch.step == step and batch.staleness == [step]
        scheduler.finished_step()
        scheduler.pushed(step + 1)
        played(scheduler, [start for start in scheduler.starts() if start != slow], step + 1)
    cancelled = [outcome for outcome in scheduler.outcomes() if isinstance(outcome, Cancel)]
    assert [cancel.key for cancel in cancelled] == [slow.key], "step 3 would train tokens of version 0"
    assert not scheduler.ended(slow.key, slow.number, slow.attempt, 0, 0)
    assert scheduler.idle
    assert scheduler.counts["stale"] == 1 and scheduler.counts["dropped_stale"] == 1


def test_stale_rollouts_are_tried_again_or_kept() -> None:
    for stale in ("retry", "keep"):
        scheduler: Scheduler[int] = Scheduler(Rules(1, 1, eta=2.0, max_staleness=1, stale=stale))
        slow, *others = scheduler.starts()
        played(scheduler, others)
        for step in range(2):
            assert scheduler.take() is not None
            scheduler.finished_step()
            scheduler.pushed(step + 1)
        again = [start for start in scheduler.starts() if start.key == slow.key]
        assert [start.attempt for start in again] == ([2] if stale == "retry" else [])
        played(scheduler, again or [slow], 2 if again else 0)
        batch = scheduler.take()
        assert batch is not None and batch.staleness == [0 if again else 2]
        assert scheduler.counts["kept_stale"] == (0 if again else 1)


@pytest.mark.parametrize(("valid", "trained"), [(8, [1] * 8), (5, [2, 2, 2, 1, 1]), (4, None), (0, None)])
def test_groups_are_repaired_if_more_than_half_of_their_rollouts_are_valid(
    valid: int, trained: list[int] | None
) -> None:
    scheduler: Scheduler[int] = Scheduler(Rules(threshold=1, group_size=8, eta=0.0, retries=0))
    for start in scheduler.starts():
        if start.number < valid:
            scheduler.ended(start.key, start.number, 1, start.number, 0)
        else:
            scheduler.failed(start.key, start.number, 1, "sandbox")
    batch = scheduler.take()
    if trained is None:
        assert batch is None and scheduler.counts["dropped_sandbox"] == 1
        reasons = Counter(r for o in scheduler.outcomes() if isinstance(o, Dropped) for r in o.reasons.values())
        assert reasons == Counter({"sandbox": 4, GROUP: 4}), "no further one is played once half of them failed"
        assert {start.key for start in scheduler.starts()} == {(0, 1)}
        with pytest.raises(ValueError, match="no more than half"):
            repeat(valid, 8)
    else:
        assert batch is not None and [kept.copies for kept in batch.groups[GroupKey(0, 0)]] == trained


def test_failures_are_tried_again_and_counted_by_kind() -> None:
    scheduler: Scheduler[int] = Scheduler(Rules(threshold=1, group_size=2, eta=0.0, retries=2))
    (first, second) = scheduler.starts()
    scheduler.ended(*vars(second).values(), 1, 0)
    for attempt, kind in enumerate(["sandbox", "engine"], start=1):
        scheduler.failed(first.key, first.number, attempt, kind)
        assert scheduler.starts() == [Start(first.key, first.number, attempt + 1)]
    assert scheduler.take() is None
    scheduler.ended(first.key, first.number, 3, 0, 0)
    assert scheduler.take() is not None
    assert +scheduler.counts == Counter(failed_sandbox=1, failed_engine=1, retried=2)


def test_over_sampling_aborts_what_has_not_ended_when_a_batch_is_complete() -> None:
    scheduler: Scheduler[int] = Scheduler(Rules(threshold=2, group_size=1, eta=0.0, oversample=1.5))
    (one, two, three) = scheduler.starts()
    played(scheduler, [three, one])
    batch = scheduler.take()
    assert batch is not None and list(batch.groups) == [one.key, three.key]
    outcomes = scheduler.outcomes()
    assert Cancel(two.key, 0, 1) in outcomes and Dropped(two.key, {0: SURPLUS}, SURPLUS) in outcomes


def test_one_step_off_begins_a_batch_when_the_one_before_has_ended() -> None:
    rules = Rules(threshold=2, group_size=1, eta=1.0, concurrency=1, whole_batches=True)
    scheduler: Scheduler[int] = Scheduler(rules)
    for step in (0, 0, 1, 1):
        (start,) = scheduler.starts()
        assert scheduler.starts() == [] and start.key.step == step
        assert {key.step for key in scheduler.active} == {step}
        played(scheduler, [start])
    assert len(scheduler.ready) == 4 and scheduler.starts() == []
