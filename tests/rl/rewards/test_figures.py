"""Figures of components: shares of the advantage's variance, spreads and correlations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.rewards.compose import compose
from arcforge_rl.rewards.figures import component_figures
from arcforge_rl.rewards.spec import Combination, Measured, RewardSpec

SUM = RewardSpec([Combination("reward", weights={"a": 1.0, "b": -2.0}, aggregation="weighted-sum")])
NUMBERS = st.floats(-3, 3).map(lambda x: round(x, 2))
GROUPS = st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=5), min_size=1, max_size=3)


@given(GROUPS)
def test_shares_of_a_sum_are_covariances_and_sum_to_one(values: list[list[tuple[float, float]]]) -> None:
    groups = [[compose(SUM, {"a": a, "b": b}) for a, b in group] for group in values]
    found = component_figures(SUM, groups)
    a, b = (np.array([x[n] for group in values for x in group]) for n in (0, 1))
    assert found["reward_a_spread"] == pytest.approx(a.std(), abs=1e-9)
    if min(a.std(), b.std()) > 1e-3:
        assert found["reward_a_with_b"] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-6)
    inside = [np.array(group) - np.array(group).mean(0) for group in values]
    a, b = np.concatenate(inside).T
    total = a - 2 * b
    if (total**2).sum() > 1e-6:
        assert found["reward_a_share"] == pytest.approx((a * total).sum() / (total**2).sum(), rel=1e-6, abs=1e-6)
        assert found["reward_a_share"] + found["reward_b_share"] == pytest.approx(1.0)


def test_what_a_gate_closes_is_charged_to_the_component_that_closes_it() -> None:
    gated = Measured("style", gates={"right": 1.0})
    spec = RewardSpec([Measured("right"), gated, Combination("reward", weights={"style": 1.0})])
    groups = [[compose(spec, {"right": right, "style": 0.8}) for right in (0.0, 1.0, 1.0, 0.0)]]
    found = component_figures(spec, groups)
    assert found["reward_right_share"] == pytest.approx(1.0)
    assert "reward_right_share" not in component_figures(spec, [groups[0][1:3]]), "equal rewards have no variance"
