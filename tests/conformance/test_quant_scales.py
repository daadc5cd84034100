"""Integer formats are as precise for small values as for large ones, in every kernel of this machine."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.ops.quant import INT4, INT8, SCALE_BYTES, dequantise, from_records, quantise

SIZES = st.integers(-8, 4).map(lambda exponent: 10.0**exponent)


def bind(hardware: str | None, op: str, **sizes: int):
    ops = Ops(None if hardware is None else select_hardware(hardware))
    return ops.binder(torch.float32, "cpu", needs_grad=False)(op, **sizes)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("hardware", [None, "torch_cpu", "cpu"])
@pytest.mark.parametrize("rows", [1, 3, 80])
@settings(max_examples=15, deadline=None)
@given(size=SIZES, weight_size=SIZES, form=st.sampled_from([INT8, INT4]), seed=st.integers(0, 99))
def test_products_are_off_by_the_rounding_of_their_inputs(hardware, rows, size, weight_size, form, seed):
    x_TK, weight_NK = size * normal(rows, 64, seed=seed), weight_size * normal(24, 64, seed=seed + 1)
    weight = quantise(weight_NK, form)
    wide_NK = dequantise(weight, torch.float64)  # whose own error is tested below
    sizes = {"inputs": 64, "outputs": 24, "bits": form.bits, "groups": 1}
    got_TN = bind(hardware, "quant_linear", **sizes)(x_TK, weight.values, weight.scale)
    exact_TN = x_TK.double().numpy() @ wide_NK.numpy().T
    step_T1 = np.abs(x_TK.double().numpy()).max(-1, keepdims=True) / 127
    bound_TN = (0.5 + 1e-4) * step_T1 * np.abs(wide_NK.numpy()).sum(-1) + 1e-5 * np.abs(exact_TN)
    assert (np.abs(got_TN.double().numpy() - exact_TN) <= bound_TN).all()


@pytest.mark.parametrize("hardware", [None, "torch_cpu", "cpu"])
@settings(max_examples=15, deadline=None)
@given(size=SIZES, seed=st.integers(0, 99))
def test_rows_of_a_cache_are_off_by_half_a_step(hardware, size, seed):
    x_TK = size * normal(5, 40, seed=seed)
    records = bind(hardware, "to_records", width=40)(x_TK)
    step_T1 = x_TK.abs().amax(-1, keepdim=True) / 127
    assert records.shape == (5, 40 + SCALE_BYTES)
    assert ((from_records(records) - x_TK).abs() <= (0.5 + 1e-4) * step_T1).all()


@settings(max_examples=30, deadline=None)
@given(size=SIZES, seed=st.integers(0, 99))
def test_int8_weights_are_off_by_half_a_step(size, seed):
    weight_NK = size * normal(6, 40, seed=seed)
    error_NK = (dequantise(quantise(weight_NK, INT8)) - weight_NK).abs()
    assert (error_NK <= (0.5 + 1e-4) * weight_NK.abs().amax(-1, keepdim=True) / 127).all()


def test_only_int4_has_the_floor_of_its_training_kernel():
    weight_NK = torch.full((1, 8), 2e-6)
    assert not dequantise(quantise(weight_NK, INT4)).any()  # as slime rounds them
    assert dequantise(quantise(weight_NK, INT8)).flatten().tolist() == pytest.approx([2e-6] * 8)
