"""How the time of a step is used, and the engine: one way of measuring for all sources of batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from arcforge_core.errors import ArcforgeError
from arcforge_core.train.processes import gather

COUNTERS = ("prompt_tokens", "cached_tokens", "generated_tokens", "steps", "busy_seconds")


class Speed:
    """Figures of each step, from its batch back to the one before. Evaluations do not count.

    Args:
        engine: one with `stats` reports on its tokens, too.
        busy: returns the seconds in which the engine had a training rollout's request.
    """

    def __init__(self, engine: Any, busy: Callable[[], float]) -> None:
        self.engine, self.busy = engine, busy
        self._trained = self._sampled = 0.0
        self._since: float | None = None
        self._before: dict[str, float] = {}
        self._before = self._counters()

    def begin(self) -> None:
        """The first step begins now, not when the trainer first waits."""
        self._since, self._before = time.monotonic(), self._counters()

    def step(self, trained: int, waited: float, seconds: Sequence[float] = ()) -> dict[str, float]:
        """Returns the figures of the step whose batch has just come; with several processes, all call it.

        Args:
            trained: tokens of the batch that this run's engines have sampled since `begin`.
            waited: seconds that the trainer waited for it.
            seconds: durations of the rollouts that ended, if known.
        """
        now, counters = time.monotonic(), self._counters()
        span = max(now - self._since if self._since is not None else waited, 1e-9)
        engines = gather({name: gain(self._before.get(name, 0.0), value) for name, value in counters.items()})
        many = 1 if hasattr(self.engine, "refresh") else len(engines)  # all processes ask one server
        gained = {name: sum(one[name] for one in engines[:many]) for name in counters}
        gained["busy"] = sum(one["busy"] for one in engines) / len(engines)
        gained["busy_seconds"] = gained.get("busy_seconds", 0.0) / many
        self._since, self._before = now, counters
        figures = {"trainer_idle": min(1.0, waited / span)}
        busy = "busy" if counters["busy"] else "busy_seconds"  # an engine that agents ask elsewhere is not asked here
        if counters.get(busy):
            figures["engine_idle"] = max(0.0, 1.0 - gained[busy] / span)
        if counters.get("generated_tokens"):
            self._trained += trained
            self._sampled += gained["generated_tokens"]
            figures |= {
                "prefix_hits": gained["cached_tokens"] / max(gained["prompt_tokens"], 1.0),
                "trained_per_sampled": self._trained / max(self._sampled, 1.0),
                "engine_tokens": gained["generated_tokens"],
                "engine_batch": gained["generated_tokens"] / max(gained["steps"], 1.0),
            }
        if gained.get("drafts"):
            figures["accepted_length"] = 1.0 + gained["accepted"] / gained["drafts"]
        if seconds:
            ordered = sorted(seconds)
            figures["rollout_p50"] = ordered[len(ordered) // 2]
            figures["rollout_p99"] = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        return figures

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leaves the block out of the step, with all that the engine does meanwhile."""
        since, before = time.monotonic(), self._counters()
        try:
            yield
        finally:
            if self._since is not None:
                self._since += time.monotonic() - since
            for name, value in self._counters().items():
                self._before[name] = self._before.get(name, 0.0) + value - before.get(name, 0.0)

    def _counters(self) -> dict[str, float]:
        counters = {"busy": self.busy()}
        if hasattr(self.engine, "stats"):
            try:
                stats = self.engine.stats()
            except ArcforgeError:  # its server is gone, and its counts since the last batch with it
                return {**self._before, **counters}
            counters |= {name: float(getattr(stats, name)) for name in COUNTERS}
            counters |= {"drafts": float(stats.drafts), "accepted": float(sum(stats.accepted_by_position))}
        return counters


def gain(before: float, now: float) -> float:
    """Returns the gain of a counter; one of a server that has started again counts from 0."""
    return now - before if now >= before else now
