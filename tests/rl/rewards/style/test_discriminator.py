"""The area under the curve by pairs, the optimum of the regression, and sets that are alike or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.rewards.style.discriminator import DECAY, auc, fitted, told_apart

SCORES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(ours=SCORES, theirs=SCORES)
def test_auc_is_the_share_of_pairs_in_order(ours: list[float], theirs: list[float]) -> None:
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in ours for b in theirs]
    assert auc(np.array(ours), np.array(theirs)) == pytest.approx(np.mean(pairs))
    assert auc(np.array(theirs), np.array(ours)) == pytest.approx(1.0 - np.mean(pairs))


def test_the_weights_are_at_the_optimum_of_the_regression() -> None:
    draw = np.random.default_rng(0)
    x_NF, is_first_N = draw.normal(size=(40, 3)), np.arange(40) < 10
    x_NF[is_first_N, 0] += 1.0
    inputs, labels = torch.from_numpy(np.column_stack([x_NF, np.ones(40)])), torch.from_numpy(is_first_N).double()
    balance_N = torch.where(labels > 0, 40 / 20, 40 / 60).double()  # 10 of one set, 30 of the other
    weight_F = torch.from_numpy(fitted(x_NF, is_first_N)).requires_grad_()
    nll = torch.nn.functional.binary_cross_entropy_with_logits(inputs @ weight_F, labels, balance_N, reduction="sum")
    (nll + 0.5 * DECAY * (weight_F[:3] ** 2).sum()).backward()
    assert weight_F.grad is not None and float(weight_F.grad.abs().max()) < 1e-5
    assert float(weight_F.detach()[0]) > 0.3


def test_alike_and_unlike_sets() -> None:
    draw = np.random.default_rng(1)
    x_NF = draw.normal(size=(300, 4))
    assert abs(told_apart(x_NF[:150], x_NF[150:]) - 0.5) < 0.1
    assert told_apart(x_NF[:150] + 5.0, x_NF[150:]) > 0.999
    constant = np.column_stack([x_NF, np.ones(300)])  # no spread
    assert told_apart(constant[:150], constant[150:]) == pytest.approx(told_apart(x_NF[:150], x_NF[150:]))
    away = x_NF[:150] + np.array([1.0, 0.0, 0.0, 0.0])
    assert 0.65 < told_apart(away, x_NF[150:]) < 0.85  # Phi(1 / sqrt 2) = 0.76
