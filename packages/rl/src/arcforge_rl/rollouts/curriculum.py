"""Chooses the next tasks: in order, or from a pool by their recent pass rate."""

from __future__ import annotations

import random
from typing import Any

from arcforge_rl.configs.learning import CurriculumConfig


class Curriculum:
    """Chooses task numbers. `state` holds everything it has learnt, so that a resumed run continues identically.

    Args:
        config: pool and bounds.
        seed: seed of the task order in each round through the pool.
    """

    def __init__(self, config: CurriculumConfig, seed: int) -> None:
        self.config, self.seed = config, seed
        self._next = 0
        self._rates: dict[int, float] = {}

    def take(self, count: int) -> list[int]:
        """Returns the next tasks. A round in which every task would be skipped is played completely."""
        found: list[int] = []
        passed_over = 0
        pool = self.config.pool
        while len(found) < count:
            number = self._next if pool is None else self._order(self._next // pool)[self._next % pool]
            if pool is None or passed_over >= pool or self._offered(number, self._next // pool):
                found.append(number)
                passed_over = 0
            else:
                passed_over += 1
            self._next += 1
        return found

    def learn(self, number: int, rate: float) -> None:
        """Records the pass rate of a task."""
        if self.config.pool is not None:
            self._rates[number] = rate

    @property
    def position(self) -> int:
        """How many tasks were taken or skipped; `take` continues there."""
        return self._next

    @property
    def state(self) -> dict[str, Any]:
        """The state stored in checkpoints."""
        return {"next": self._next, "rates": dict(self._rates)}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._next, self._rates = int(state["next"]), dict(state["rates"])

    @property
    def figures(self) -> dict[str, float]:
        """Returns the share of the pool's known tasks whose pass rate is within the bounds."""
        if not self._rates:
            return {}
        fitting = sum(self._fits(rate) for rate in self._rates.values())
        return {"curriculum_fitting": fitting / len(self._rates)}

    def _fits(self, rate: float) -> bool:
        return self.config.low <= rate <= self.config.high

    def _offered(self, number: int, round_: int) -> bool:
        """Returns whether a task is unknown, has a pass rate within the bounds, or is due for a revisit."""
        rate = self._rates.get(number)
        return rate is None or self._fits(rate) or (number + round_) % self.config.revisit == 0

    def _order(self, round_: int) -> list[int]:
        if self.config.pool is None:
            raise ValueError("there is no pool")
        order = list(range(self.config.pool))
        random.Random(f"{self.seed}/{round_}").shuffle(order)
        return order
