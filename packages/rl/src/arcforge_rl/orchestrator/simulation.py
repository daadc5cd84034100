"""The scheduler under a virtual clock: engines, tools and a trainer are models, and a run takes no real time.

An engine advances all its sequences by one token in ``step_seconds + sequences * sequence_seconds``. A rollout stays
on its engine and alternates between sampling and a tool, whose latency is log-normal with an upper limit.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from arcforge_rl.orchestrator.group import GroupKey
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.scheduler import Cancel, Scheduler, Start


@dataclass(frozen=True)
class Workload:
    """The rollouts; each seed draws others.

    Attributes:
        turns: fewest and most turns of a rollout, both included.
        tokens: fewest and most tokens of a turn.
        latency: median seconds of a tool call; there is one between two turns.
        sigma: standard deviation of the latency's logarithm.
        longest: upper limit of a call, in seconds.
        failing: share of attempts that fail, each in its last turn.
        equal: share of groups whose rewards are all equal, which are dropped.
        plan: returns the tokens of each turn of a rollout and the latencies between them, instead of draws from the
            fields above: a measured run's.
    """

    turns: tuple[int, int] = (4, 4)
    tokens: tuple[int, int] = (20, 60)
    latency: float = 1.0
    sigma: float = 1.0
    longest: float = 30.0
    failing: float = 0.0
    equal: float = 0.0
    plan: Callable[[Start], tuple[Sequence[int], Sequence[float]]] | None = None


@dataclass(frozen=True)
class Machine:
    """Engines and a trainer.

    Attributes:
        engines: number of engines.
        step_seconds, sequence_seconds: duration of a decoding step: a constant, and a part for each sequence.
        train_seconds: of an update.
        push_seconds: for which a weight push stops all engines.
        shares: whether engines stop while the trainer works, because both are the same device.
    """

    engines: int = 1
    step_seconds: float = 0.004
    sequence_seconds: float = 0.0002
    train_seconds: float = 4.0
    push_seconds: float = 0.05
    shares: bool = False


@dataclass(frozen=True)
class Simulated:
    """Figures of a simulated run; the first tenth of its steps does not count in times and shares.

    Attributes:
        step_seconds: mean time from batch to batch.
        trainer_busy, engines_busy: shares of the time; an engine is busy while it has a sequence.
        staleness: mean of the rollouts trained on; `most_staleness` the largest.
        rollout_median, rollout_p99: seconds from start to end of the rollouts that ended.
        trained_share: tokens trained on per token sampled, repetitions not counted.
        counts: of the scheduler.
    """

    step_seconds: float
    trainer_busy: float
    engines_busy: float
    staleness: float
    most_staleness: int
    rollout_median: float
    rollout_p99: float
    trained_share: float
    counts: Counter[str]


@dataclass
class _Engine:
    """Sequences share an engine: each gets a token per step. `done` counts the tokens that each has had so far."""

    machine: Machine
    number: int
    then: float = 0.0
    done: float = 0.0
    stopped: int = 0
    busy: float = 0.0
    sampled: float = 0.0
    count: int = 0
    ends: list[tuple[float, int, _Attempt]] = field(default_factory=list)
    wakes: int = 0

    def rate(self) -> float:
        """Tokens per second of each sequence."""
        if self.stopped or not self.count:
            return 0.0
        return 1.0 / (self.machine.step_seconds + self.count * self.machine.sequence_seconds)

    def move(self, now: float) -> None:
        passed = (now - self.then) * self.rate()
        self.busy += (now - self.then) * (self.count > 0 and not self.stopped)
        self.done += passed
        self.sampled += passed * self.count
        self.then = now

    def next_end(self) -> float:
        """The time of the next end of a turn."""
        while self.ends and not self.ends[0][2].alive:
            heapq.heappop(self.ends)
        rate = self.rate()
        return self.then + max(0.0, self.ends[0][0] - self.done) / rate if self.ends and rate else math.inf


@dataclass
class _Attempt:
    """An attempt at a rollout."""

    start: Start
    engine: _Engine
    since: float
    version: int
    turns: Sequence[int]
    latencies: Sequence[float]
    fails: bool
    alive: bool = True
    sampling: bool = False
    turn: int = 0


class Simulation:
    """One run; `run` plays it.

    Args:
        rules: of the scheduler.
        workload, machine: see there.
        seed: of all random numbers: a rollout's length and latencies depend on it, on its name and attempt alone.
    """

    def __init__(self, rules: Rules, workload: Workload, machine: Machine, seed: int = 0) -> None:
        self.rules, self.workload, self.machine, self.seed = rules, workload, machine, seed
        self.now = 0.0
        self.scheduler: Scheduler[int] = Scheduler(rules, self._equal)
        self.engines = [_Engine(machine, number) for number in range(machine.engines)]
        self._choose = random.Random(f"{seed}/engines")
        self._attempts: dict[tuple[GroupKey, int], _Attempt] = {}
        self._events: list[tuple[float, int, str, object]] = []
        self._number = 0
        self._training = False
        self._busy = 0.0
        self._marks: list[tuple[float, float, float]] = []
        self._staleness: list[int] = []
        self._seconds: list[float] = []
        self._trained = 0

    def run(self, steps: int) -> Simulated:
        """Plays until `steps` updates are done.

        Raises:
            RuntimeError: nothing can happen any more: the scheduler stopped.
        """
        self._follow()
        while self.scheduler.trained < steps:
            if not self._events:
                raise RuntimeError(f"nothing left to happen after {self.scheduler.trained} steps")
            self.now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_on_{kind}")(what)
            self._follow()
        for engine in self.engines:
            engine.move(self.now)
        return self._figures()

    # ---- events ------------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, kind: str, what: object = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, kind, what))

    def _on_engine(self, what: tuple[_Engine, int]) -> None:
        engine, wakes = what
        if wakes != engine.wakes:  # its sequences have changed since
            return
        engine.move(self.now)
        while engine.ends and (not engine.ends[0][2].alive or engine.ends[0][0] <= engine.done + 1e-6):
            _, _, attempt = heapq.heappop(engine.ends)
            if attempt.alive:
                self._turn_ended(attempt)
        self._look(engine)

    def _on_tool(self, attempt: _Attempt) -> None:
        if attempt.alive:
            self._sample(attempt)

    def _on_updated(self, what: object) -> None:
        self._training = False
        self.scheduler.finished_step()
        self._stop_all(self.machine.push_seconds)
        self.scheduler.pushed(self.scheduler.trained)
        if self.machine.shares:
            self._start_all()
        engines = sum(engine.busy for engine in self.engines)
        self._marks.append((self.now, self._busy, engines))

    def _on_pushed(self, what: object) -> None:
        self._start_all()

    def _follow(self) -> None:
        """Lets trainer and scheduler act on what has happened."""
        if not self._training and (batch := self.scheduler.take()) is not None:
            self._training = True
            self._staleness += batch.staleness
            self._trained += sum(kept.result for group in batch.groups.values() for kept in group)
            self._busy += self.machine.train_seconds
            if self.machine.shares:
                self._stop_all(None)
            self._after(self.machine.train_seconds, "updated")
        for outcome in self.scheduler.outcomes():
            if isinstance(outcome, Cancel):
                self._leave(self._attempts.pop((outcome.key, outcome.number)))
        for start in self.scheduler.starts():
            self._begin(start)

    # ---- rollouts ----------------------------------------------------------------------------------------------------

    def _begin(self, start: Start) -> None:
        work = self.workload
        rng = random.Random(f"{self.seed}/{start.key.step}/{start.key.number}/{start.number}/{start.attempt}")
        turns: Sequence[int] = [rng.randint(*work.tokens) for _ in range(rng.randint(*work.turns))]
        latencies: Sequence[float]
        latencies = [min(work.longest, work.latency * rng.lognormvariate(0.0, work.sigma)) for _ in turns[1:]]
        if work.plan is not None:
            turns, latencies = work.plan(start)
        one, other = self._choose.choice(self.engines), self._choose.choice(self.engines)
        engine = min(one, other, key=lambda each: each.count)
        attempt = _Attempt(
            start, engine, self.now, self.scheduler.version, turns, latencies, rng.random() < work.failing
        )
        self._attempts[start.key, start.number] = attempt
        self._sample(attempt)

    def _sample(self, attempt: _Attempt) -> None:
        engine = attempt.engine
        engine.move(self.now)
        engine.count += 1
        attempt.sampling = True
        self._number += 1
        heapq.heappush(engine.ends, (engine.done + attempt.turns[attempt.turn], self._number, attempt))
        self._look(engine)

    def _turn_ended(self, attempt: _Attempt) -> None:
        attempt.engine.count -= 1
        attempt.sampling = False
        attempt.turn += 1
        if attempt.turn < len(attempt.turns):
            self._after(attempt.latencies[attempt.turn - 1], "tool", attempt)
            return
        attempt.alive = False
        start = attempt.start
        del self._attempts[start.key, start.number]
        self._seconds.append(self.now - attempt.since)
        if attempt.fails:
            self.scheduler.failed(start.key, start.number, start.attempt, "sandbox")
        else:
            self.scheduler.ended(start.key, start.number, start.attempt, sum(attempt.turns), attempt.version)

    def _leave(self, attempt: _Attempt) -> None:
        attempt.alive = False
        if attempt.sampling:
            attempt.engine.move(self.now)
            attempt.engine.count -= 1
            self._look(attempt.engine)

    def _look(self, engine: _Engine) -> None:
        """Schedules the engine's next event."""
        engine.wakes += 1
        end = engine.next_end()
        if end < math.inf:
            self._after(max(0.0, end - self.now), "engine", (engine, engine.wakes))

    def _stop_all(self, seconds: float | None) -> None:
        """Stops all engines, for some seconds or until `_start_all`."""
        for engine in self.engines:
            engine.move(self.now)
            engine.stopped += 1
            self._look(engine)
        if seconds is not None:
            self._after(seconds, "pushed")

    def _start_all(self) -> None:
        for engine in self.engines:
            engine.move(self.now)
            engine.stopped -= 1
            self._look(engine)

    def _equal(self, key: GroupKey, results: object) -> str | None:
        share = random.Random(f"{self.seed}/equal/{key.step}/{key.number}").random()
        return "all_equal" if share < self.workload.equal else None

    def _figures(self) -> Simulated:
        marks, skipped = self._marks, len(self._marks) // 10
        (begin, busy, engines), (end, busy_end, engines_end) = marks[skipped], marks[-1]
        span = end - begin
        seconds = sorted(self._seconds)
        return Simulated(
            step_seconds=span / (len(marks) - 1 - skipped),
            trainer_busy=(busy_end - busy) / span,
            engines_busy=(engines_end - engines) / span / len(self.engines),
            staleness=statistics.fmean(self._staleness),
            most_staleness=max(self._staleness),
            rollout_median=statistics.median(seconds),
            rollout_p99=seconds[math.ceil(0.99 * len(seconds)) - 1],
            trained_share=self._trained / sum(engine.sampled for engine in self.engines),
            counts=+self.scheduler.counts,
        )
