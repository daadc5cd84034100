"""The conformance suite of schedules: subclass it and provide the fixtures `config` and, if not registered, `target`.

class TestAcme(ScheduleSuite):
    @pytest.fixture
    def config(self):
        return AcmeScheduleConfig()
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from arcforge_core.config.schema import ScheduleConfig
from arcforge_core.plugins.loader import registry

Target = Callable[[ScheduleConfig], Callable[[float], float]]
POINTS = [n / 1000 for n in range(1001)]


class ScheduleSuite:
    """Checks of every schedule: a pure function into [0, 1] that rises during warm-up and ends at `final`."""

    warmups: tuple[float, ...] = (0.0, 0.02, 0.25)
    """Values of ``warmup`` that are valid with all other fields of the config."""

    @pytest.fixture
    def config(self) -> ScheduleConfig:
        """The config to test; a subclass returns it."""
        raise NotImplementedError("provide the fixture `config` in your subclass")

    @pytest.fixture
    def target(self, config: ScheduleConfig) -> Target:
        """The factory of the schedule: the registered component of the config's name."""
        found: Target = registry().get("schedule", config.name).load()
        return found

    @pytest.fixture
    def variants(self, config: ScheduleConfig) -> list[ScheduleConfig]:
        """The config with several values of `warmup` and `final`."""
        return [config, *(replace(config, warmup=w, final=f) for w in self.warmups for f in (0.0, 0.1, 1.0))]

    def test_factor_lies_between_zero_and_one(self, variants: list[ScheduleConfig], target: Target) -> None:
        """At every progress, and it is not always zero."""
        for config in variants:
            factors = [target(config)(progress) for progress in POINTS]
            assert all(0.0 <= factor <= 1.0 for factor in factors), config
            assert max(factors) >= min(1.0, config.final)

    def test_warm_up_rises_from_zero(self, variants: list[ScheduleConfig], target: Target) -> None:
        """Each warm-up step has a higher factor than the one before; without warm-up the first step's is positive."""
        for config in (replace(c, final=c.final or 0.1) for c in variants):
            factor = target(config)
            if not config.warmup:
                assert factor(0.0) > 0.0, config
                continue
            rising = [factor(config.warmup * n / 20) for n in range(21)]
            assert rising[0] == 0.0, config
            assert all(low < high for low, high in pairwise(rising)), config

    def test_ends_at_final(self, variants: list[ScheduleConfig], target: Target) -> None:
        """The factor at the end equals the config's `final`."""
        for config in variants:
            assert target(config)(1.0) == pytest.approx(config.final, abs=1e-9), config

    def test_constant_after_the_end(self, variants: list[ScheduleConfig], target: Target) -> None:
        """Progress is clipped, because a run limited by time may exceed its budget."""
        for config in variants:
            factor = target(config)
            assert [factor(1.25), factor(100.0)] == pytest.approx([factor(1.0)] * 2, abs=1e-9), config

    def test_depends_on_progress_only(self, variants: list[ScheduleConfig], target: Target) -> None:
        """A resumed run starts in the middle and gets the same factors as an uninterrupted one."""
        for config in variants:
            asked = dict(zip(POINTS, map(target(config), POINTS), strict=True))
            again, shuffled = target(config), random.Random(0).sample(POINTS, len(POINTS))
            assert {progress: again(progress) for progress in shuffled} == asked, config
