"""``algorithm.components=decoupled`` equals GDPO's formula, and components of small spread count."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.algorithm import Trace
from arcforge_core.errors import ConfigError
from arcforge_core.testing.traces import make_branch
from arcforge_rl.algorithms.grpo import Grpo
from arcforge_rl.algorithms.scoring import has_spread
from arcforge_rl.configs.algorithms import BoundsConfig, DapoConfig, GrpoConfig, PpoConfig, ReinforcePlusPlusConfig

WEIGHTS = {"a": 2.0, "b": -0.5}


def traces_of(values: list[list[tuple[float, float]]]) -> list[Trace]:
    """Groups of rollouts with the components a and b."""
    found = []
    for group, pairs in enumerate(values):
        for place, (a, b) in enumerate(pairs):
            name = f"{group}.{place}"
            branch = make_branch(random.Random(name), name, 3)
            rewards = {"reward": 2 * a - 0.5 * b, "a": a, "b": b}
            found.append(Trace("t", str(group), name, [branch], rewards))
    return found


def formula(values: list[list[tuple[float, float]]]) -> list[float]:
    """Eq. 4-6 of arXiv 2601.05242, number by number."""
    sums = []
    for pairs in values:
        total = [0.0] * len(pairs)
        for place, weight in enumerate(WEIGHTS.values()):
            column = [pair[place] for pair in pairs]
            if max(column) - min(column) <= 1e-6:
                continue
            mean, spread = statistics.mean(column), statistics.stdev(column)
            total = [t + weight * (x - mean) / (spread + 1e-6) for t, x in zip(total, column, strict=True)]
        sums += total
    mean, spread = statistics.mean(sums), statistics.stdev(sums)
    return [(value - mean) / (spread + 1e-6) for value in sums]


NUMBERS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 30.0])


@given(st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=4), min_size=1, max_size=3))
def test_advantages_equal_the_formula(values: list[list[tuple[float, float]]]) -> None:
    traces, algorithm = traces_of(values), Grpo(GrpoConfig(components="decoupled"), BoundsConfig())
    algorithm.components = WEIGHTS
    assert algorithm.advantages(traces) == pytest.approx(formula(values), rel=1e-6, abs=1e-6)


def test_a_component_of_small_spread_counts_and_equal_sums_teach() -> None:
    """Two components that cancel leave no advantage of their sum; apart they have one."""
    traces = traces_of([[(0.0, 0.0), (0.25, 1.0)]])
    assert not has_spread(traces) and has_spread(traces, ("a", "b"))
    algorithm = Grpo(GrpoConfig(components="decoupled"), BoundsConfig())
    algorithm.components = WEIGHTS
    low, high = algorithm.advantages(traces)
    assert high == pytest.approx(-low) and high > 0.5


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (lambda: GrpoConfig(components="apart"), "algorithm.components"),
        (lambda: GrpoConfig(components="decoupled", scale="none"), "algorithm.components"),
        (lambda: PpoConfig(components="decoupled"), "algorithm.components"),
        (lambda: ReinforcePlusPlusConfig(components="decoupled", baseline="group"), "algorithm.components"),
        (lambda: DapoConfig(components="decoupled", overlong_tokens=9), "algorithm.overlong_tokens"),
    ],
)
def test_impossible_pairs_are_refused(made, field) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=field):
        made()
