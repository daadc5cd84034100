"""Figures of the clip count the tokens whose gradient it has taken, and no others."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.algorithms.surrogates import clip_metrics, clipped

LOW, HIGH = 0.25, 0.5
BOUNDS = [edge for bound in (1 - LOW, 1 + HIGH) for edge in (bound, math.nextafter(bound, 0), math.nextafter(bound, 9))]


@given(st.lists(st.tuples(st.sampled_from(BOUNDS) | st.floats(0.1, 3), st.sampled_from([-2.0, 1.0])), min_size=1))
def test_clipped_shares_are_those_of_the_tokens_without_a_gradient(tokens: list[tuple[float, float]]) -> None:
    ratios, advantages = zip(*tokens, strict=True)
    ratio_T = torch.tensor(ratios, dtype=torch.float64, requires_grad=True)
    advantages_T = torch.tensor(advantages, dtype=torch.float64)
    clipped(ratio_T, advantages_T, LOW, HIGH).sum().backward()
    assert ratio_T.grad is not None
    taken = ratio_T.grad == 0
    found = clip_metrics(ratio_T, advantages_T, LOW, HIGH)
    below = ratio_T.detach() < 1
    assert found["clipped_low"] == (taken & below).double().mean()
    assert found["clipped_high"] == (taken & ~below).double().mean()
