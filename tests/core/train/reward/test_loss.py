"""The loss equals formulas computed number by number; the measures equal their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.config.reward import PreferenceConfig
from arcforge_core.train.reward.loss import length_bias, measure, preference_loss

NUMBER = st.floats(-4, 4)
PAIRS = st.lists(st.tuples(NUMBER, NUMBER, st.floats(0, 2), st.integers(-9, 9)), min_size=1, max_size=6)
WEIGHTS = st.builds(
    PreferenceConfig,
    margin=st.sampled_from([0.0, 0.5]),
    centring=st.sampled_from([0.0, 0.01]),
    length_control=st.sampled_from([0.0, 2.0]),
)


def formula(pairs: list[tuple[float, float, float, int]], config: PreferenceConfig, bias: float) -> float:
    total = 0.0
    for chosen, rejected, margin, longer in pairs:
        logit = chosen - rejected - config.margin * margin + (bias * longer if config.length_control else 0.0)
        total += math.log1p(math.exp(-logit)) + config.centring * (chosen + rejected) ** 2
    total /= len(pairs)
    if config.length_control:
        top = sum((chosen - rejected) * longer for chosen, rejected, _, longer in pairs)
        left = sum((chosen - rejected) ** 2 for chosen, rejected, _, _ in pairs)
        total += config.length_control * top**2 / (left * sum(longer**2 for *_, longer in pairs) + 1e-12)
    return total


@given(PAIRS, WEIGHTS, st.floats(-0.5, 0.5))
def test_the_loss_equals_the_formula_and_its_gradient_differences(
    pairs: list[tuple[float, float, float, int]], config: PreferenceConfig, bias: float
) -> None:
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True)]
    chosen_P = columns[0].requires_grad_()
    loss = preference_loss(chosen_P, *columns[1:], config, bias)
    assert float(loss.detach()) == pytest.approx(formula(pairs, config, bias), rel=1e-9, abs=1e-9)
    if config.length_control and min(abs(a - b) for a, b, *_ in pairs) < 0.1:
        return  # the correlation of differences near 0 has a kink
    loss.backward()
    step = 1e-6
    moved = [[(a + sign * step, *rest) for a, *rest in pairs[:1]] + pairs[1:] for sign in (1, -1)]
    slope = (formula(moved[0], config, bias) - formula(moved[1], config, bias)) / (2 * step)  # type: ignore[arg-type]
    assert float(chosen_P.grad[0]) == pytest.approx(slope, abs=1e-5)  # type: ignore[index]


def test_equal_scores_have_a_finite_gradient() -> None:
    """So does a new head, which gives 0 everywhere."""
    zeros_P = torch.zeros(3, requires_grad=True)
    config = PreferenceConfig(length_control=1.0)
    preference_loss(zeros_P, torch.zeros(3), torch.ones(3), torch.tensor([1.0, -2.0, 0.0]), config, 0.1).backward()
    assert zeros_P.grad is not None and bool(zeros_P.grad.isfinite().all())


def test_the_length_explains_what_it_explains() -> None:
    """Of 100 pairs that differ by 2 tokens, the longer reply is chosen 80 times: log(80 / 20) / 2 a token."""
    longer = [2.0] * 80 + [-2.0] * 20
    assert length_bias(longer) == pytest.approx(math.log(4) / 2, rel=1e-6)
    assert length_bias([0.0, 0.0]) == 0.0
    assert 0 < length_bias([1.0, 2.0, 3.0]) < math.inf, "labels that the length separates"


def test_measures_equal_their_definitions() -> None:
    log3 = math.log(3)  # sigmoid: 0.75
    found = measure([log3, log3, 0.0, 1.0], [0.0, 0.0, log3, 1.0], [3, 3, -3, 0])
    assert found.pairs == 4 and found.accuracy == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert found.bins == [(1, 0.5, 0.5), (3, pytest.approx(0.75), pytest.approx(2 / 3))]
    assert found.calibration_error == pytest.approx(0.75 * (0.75 - 2 / 3))
    assert found.loss == pytest.approx((-2 * math.log(0.75) - math.log(0.25) + math.log(2)) / 4)
    assert found.length_correlation == pytest.approx(1.0)
    assert found.mean == pytest.approx((3 * log3 + 2) / 8)
