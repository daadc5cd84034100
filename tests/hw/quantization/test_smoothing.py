"""Smoothing factors: AWQ's search is never worse than factors of 1, and both rules undo an outlier channel."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, dequantise, quantise
from arcforge_hw.quantization.flex import at_place
from arcforge_hw.quantization.smoothing import TRIED_TOKENS, Reader, search


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reader(weight: Tensor, x: Tensor, form: object = INT8) -> Reader:
    return Reader("weight", weight, x, partial(quantise, form=form))


def square_error(weight: Tensor, x: Tensor, factors: Tensor, form: object, rounds: bool) -> float:
    """Returns the error of rounded factors and weights, written out."""
    read = x / factors
    if rounds:
        scale = read.abs().max(-1, keepdim=True).values / 127
        read = (read / scale).round() * scale
    return float(((read @ dequantise(quantise(weight * factors, form)).T - x @ weight.T) ** 2).sum())


@pytest.mark.parametrize("form, rounds", [(INT8, True), (INT4, True), (INT4_GROUP_32, False)])
def test_awq_is_never_worse_than_rounding_alone(form: object, rounds: bool) -> None:
    for seed in range(5):
        weight, x = drawn(12, 32, seed=seed), drawn(40, 32, seed=seed + 9) * drawn(32, seed=seed + 5).exp()
        found = search([reader(weight, x, form)], "awq", 8, rounds)
        assert found is not None and found.after <= found.before
        assert found.before == pytest.approx(square_error(weight, x, torch.ones(32), form, rounds), rel=1e-4)
        assert found.after == pytest.approx(square_error(weight, x, found.factors, form, rounds), rel=1e-4)


def test_uniform_channels_keep_factors_of_1() -> None:
    """Every candidate is 1 or worse where all channels have the same size: the search may change nothing."""
    weight, x = torch.ones(4, 8), drawn(16, 1).expand(-1, 8)
    found = search([reader(weight, x)], "awq", 4, rounds=True)
    assert found is not None and torch.allclose(found.factors, torch.ones(8)) and found.after == found.before


@pytest.mark.parametrize("smoothing", ["awq", "migrate"])
def test_an_outlier_channel_is_undone(smoothing: str) -> None:
    weight, x = drawn(12, 32), drawn(64, 32, seed=1)
    weight[:, 5] /= 64
    x[:, 5] *= 64
    found = search([reader(weight, x)], smoothing, 10, rounds=True)
    assert found is not None and found.after < 0.05 * found.before
    assert found.factors.argmax() == 5


def test_migrate_is_the_root_of_activation_over_weight() -> None:
    weight, x = drawn(12, 32), drawn(64, 32, seed=1)
    found = search([reader(weight, x)], "migrate", 1, rounds=True)
    wanted = (x.abs().amax(0) / weight.abs().amax(0)).sqrt()
    assert found is not None and torch.allclose(found.factors / found.factors[0], wanted / wanted[0], rtol=1e-5)


def test_all_readers_count_and_those_without_tokens_do_not() -> None:
    x = drawn(64, 32, seed=1)
    quiet, loud = drawn(12, 32), drawn(12, 32, seed=3)
    loud[:, 7] *= 100
    alone = search([reader(quiet, x)], "migrate", 1, rounds=True)
    both = search([reader(quiet, x), reader(loud, x)], "migrate", 1, rounds=True)
    unread = search([reader(quiet, x), reader(loud, x[:0])], "migrate", 1, rounds=True)
    assert alone is not None and both is not None and unread is not None
    assert both.factors.argmin() == 7 and torch.equal(alone.factors, unread.factors)
    assert search([reader(loud, x[:0])], "awq", 4, rounds=True) is None


def test_heads_that_read_one_value_head_share_its_factors() -> None:
    """Columns [2 value heads, 3 query heads each, size 4]: the largest activation of the three decides."""
    weight, x = drawn(12, 24), drawn(64, 24, seed=1)
    x[:, 2 * 4 + 1] *= 50  # channel 1 of value head 0, read by its third query head
    found = search([reader(weight, x)], "awq", 10, rounds=True, groups=2, repeats=3)
    assert found is not None and found.factors.shape == (8,) and found.factors.argmax() == 1
    assert found.after < found.before


def test_factors_are_tried_on_a_sample_and_sized_by_all_tokens() -> None:
    """The one loud token is left out of the sample of every third token, and decides the size of its channel."""
    weight, x = drawn(12, 32), drawn(3 * TRIED_TOKENS, 32, seed=1)
    x[1, 4] = 1e4
    whole = search([reader(weight, x)], "migrate", 1, rounds=True)
    part = search([reader(weight, x[::3])], "migrate", 1, rounds=True)
    assert whole is not None and part is not None
    assert whole.before == part.before and whole.factors.argmax() == 4 and part.factors.max() < whole.factors.max() / 2


def test_dead_channels_have_finite_factors() -> None:
    weight, x = drawn(12, 32), drawn(64, 32, seed=1)
    x[:, 3] = 0
    weight[:, 4] = 0
    for smoothing in ("awq", "migrate"):
        found = search([reader(weight, x)], smoothing, 10, rounds=True)
        assert found is not None and bool(found.factors.isfinite().all()) and float(found.factors.min()) > 0


@pytest.mark.parametrize("smoothing", ["flex_smooth", "flex_awq"])
def test_flex_rules_undo_an_outlier_and_take_dead_channels(smoothing: str) -> None:
    weight, x = drawn(12, 32), drawn(64, 32, seed=1)
    x[:, 5] *= 64
    weight[:, 5] /= 64
    x[:, 9] = 0
    found = search([reader(weight, x)], smoothing, 10, rounds=True)
    assert found is not None and found.after < 0.1 * found.before
    assert found.factors.argmax() == 5 and bool(found.factors.isfinite().all())


def test_the_recipe_takes_each_rule_at_its_place() -> None:
    places = {"self_attn.value": "flex_smooth", "mlp.experts.up": "flex_awq", "post_attention_layernorm": "none"}
    assert {place: at_place("flex", place) for place in places} == places
    assert at_place("awq", "post_attention_layernorm") == "awq"
