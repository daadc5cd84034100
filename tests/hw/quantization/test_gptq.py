"""GPTQ equals a slow form that inverts the Hessian of the remaining columns at every step, and never loses more."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, Format, Quantised, dequantise, quantise, unpack_int4
from arcforge_hw.quantization.gptq import DAMPING, gptq
from arcforge_hw.quantization.rounding import ssz

FORMS = {"int8": INT8, "int4": INT4, "groups": INT4_GROUP_32}


def inputs(tokens: int, columns: int, seed: int = 0) -> Tensor:
    """Returns correlated inputs [T, K] of unequal sizes."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(tokens, columns // 4, generator=generator) @ torch.randn(
        columns // 4, columns, generator=generator
    )
    return mixed + 0.3 * torch.randn(tokens, columns, generator=generator)


def weight_of(rows: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def integers_of(found: Quantised, form: Format) -> Tensor:
    return found.values if form.bits == 8 else unpack_int4(found.values)


def slow(weight: Tensor, x: Tensor, form: Format) -> Tensor:
    """Optimal brain quantisation in a fixed order: after each column, the best change of the remaining ones.

    The change solves ``H_rest c = -H[rest, j] e`` for the error e of column j: least squares, written out.
    """
    left = weight.double().clone()
    hessian = x.double().T @ x.double()
    hessian += DAMPING * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=torch.float64)
    remaining = list(range(len(hessian)))
    if form.group is None:
        size = x.double().square().sum(0)
        remaining.sort(key=lambda j: -float(size[j]))
    integers = torch.empty(weight.shape, dtype=torch.int8)
    scale = quantise(weight, form).scale.double()
    while remaining:
        j = remaining.pop(0)
        if form.group is not None and j % form.group == 0:
            largest = left[:, j : j + form.group].float().abs().amax(1)
            scale[:, j // form.group] = (largest / form.largest).double()
        s = scale[:, 0 if form.group is None else j // form.group]
        value = (left[:, j] / s).round().clamp(-form.largest - 1, form.largest)
        integers[:, j] = value.to(torch.int8)
        error = value * s - left[:, j]
        if remaining:
            change = torch.linalg.solve(hessian[remaining][:, remaining], -hessian[remaining, j])
            left[:, remaining] += error[:, None] * change
    return integers


def loss(found: Quantised, weight: Tensor, x: Tensor) -> Tensor:
    """Returns the square error of each output."""
    return (x.double() @ (dequantise(found, torch.float64) - weight.double()).T).square().sum(0)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_it_equals_the_slow_form(form: Format) -> None:
    weight, x = weight_of(6, 160), inputs(400, 160)
    found = gptq(weight, x, form, partial(quantise, form=form))
    assert found.kept_rows == 0
    assert torch.equal(integers_of(found.integers, form), slow(weight, x, form))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("plain", [quantise, partial(ssz, steps=10)], ids=["nearest", "ssz"])
def test_it_loses_much_less_and_in_no_row_more(form: Format, plain: object) -> None:
    weight, x = weight_of(24, 96), inputs(500, 96)
    start = plain(weight, form=form)  # type: ignore[operator]
    found = gptq(weight, x, form, partial(plain, form=form)).integers  # type: ignore[arg-type]
    before, after = loss(start, weight, x), loss(found, weight, x)
    assert (after <= before * (1 + 1e-9)).all() and after.sum() < 0.5 * before.sum()
    assert found.values.dtype == start.values.dtype and found.scale.shape == start.scale.shape
    # and on text that it was not fitted to
    other = inputs(500, 96, seed=0)[250:] + 0.1 * inputs(250, 96, seed=8)
    assert loss(found, weight, other).sum() < loss(start, weight, other).sum()


def test_a_row_that_would_lose_more_keeps_its_plain_rounding() -> None:
    """With one token, or with inputs that are hardly correlated, moved errors make some rows worse."""
    kept = 0
    for seed in range(3):
        weight, x = weight_of(64, 64, seed), inputs(1, 64)
        start = quantise(weight, INT4)
        found = gptq(weight, x, INT4, partial(quantise, form=INT4))
        same = (found.integers.values == start.values).all(1)
        assert int(same.sum()) >= found.kept_rows
        assert (loss(found.integers, weight, x) <= loss(start, weight, x)).all()
        kept += found.kept_rows
    assert kept


def test_singular_inputs_are_rounded_plainly_or_damped() -> None:
    weight = weight_of(5, 32)
    plain = partial(quantise, form=INT4)

    def same(found: Quantised) -> bool:
        return all(torch.equal(x, y) for x, y in zip(found, plain(weight), strict=True))

    for x in (
        torch.zeros(7, 32),
        torch.zeros(0, 32),
        torch.full((7, 32), float("inf")),
        torch.full((7, 32), float("nan")),
    ):
        found = gptq(weight, x, INT4, plain)
        assert found.kept_rows == 5 and same(found.integers)
    one = gptq(weight, torch.randn(1, 32, generator=torch.Generator().manual_seed(0)), INT4, plain)  # rank 1
    assert bool(dequantise(one.integers).isfinite().all())
    dead = inputs(100, 32)
    dead[:, 5] = 0
    found = gptq(weight, dead, INT4, plain)
    assert torch.equal(unpack_int4(found.integers.values)[:, 5], unpack_int4(plain(weight).values)[:, 5])
