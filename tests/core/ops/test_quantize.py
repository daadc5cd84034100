"""Integer weights: the error that rounding may leave, packing both ways, and the linear layer over them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.ops import reference
from arcforge_core.ops.quantize import LARGEST, integer_rows, pack_int4, quantize_rows, unpack_int4


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([8, 4]), st.integers(1, 9), st.integers(1, 40), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_rounding_is_off_by_half_a_step_at_most(bits, rows, columns, size, seed):
    x_NK = size * normal(rows, columns, seed=seed)
    q_NK, scale_N = quantize_rows(x_NK, bits)
    assert q_NK.dtype == torch.int8
    assert q_NK.abs().max() <= LARGEST[bits]
    assert ((q_NK * scale_N[:, None] - x_NK).abs() <= 0.5 * scale_N[:, None] * (1 + 1e-9)).all()


def test_rows_of_zeros_stay_zero_and_do_not_divide_by_zero():
    q_NK, scale_N = quantize_rows(torch.zeros(2, 4), 4)
    assert not q_NK.any()
    assert scale_N.isfinite().all()


def test_bits_that_nobody_defined_are_refused():
    with pytest.raises(ValueError, match="bits=5: must be one of 8, 4"):
        quantize_rows(torch.zeros(1, 2), 5)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 99))
def test_packing_is_reversed_by_unpacking(rows, pairs, seed):
    q_NK = torch.randint(-8, 8, (rows, 2 * pairs), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    packed_NK = pack_int4(q_NK)
    assert packed_NK.dtype == torch.uint8
    assert packed_NK.shape == (rows, pairs)
    assert torch.equal(unpack_int4(packed_NK), q_NK)
    assert torch.equal(integer_rows(packed_NK, 2 * pairs), q_NK)


def test_the_even_column_is_the_low_half():
    assert pack_int4(torch.tensor([[1, -1]], dtype=torch.int8)).tolist() == [[0xF1]]


def test_rows_of_odd_length_are_not_packed():
    with pytest.raises(ValueError, match="must be even, not 3"):
        pack_int4(torch.zeros(2, 3, dtype=torch.int8))


@pytest.mark.parametrize("weight", [torch.zeros(3, 8), torch.zeros(3, 8, dtype=torch.uint8)], ids=["float", "unpacked"])
def test_weights_of_another_kind_are_refused(weight):
    with pytest.raises(ValueError, match="int8"):
        integer_rows(weight, 8)


@pytest.mark.parametrize(("bits", "error"), [(8, 0.02), (4, 0.2)])
def test_a_quantised_layer_is_close_to_the_one_it_came_from(bits, error):
    x_TK, weight_NK = normal(20, 64), normal(48, 64, seed=1)
    q_NK, scale_N = quantize_rows(weight_NK, bits)
    got_TN = reference.quant_linear(x_TK, pack_int4(q_NK) if bits == 4 else q_NK, scale_N)
    wanted_TN = x_TK @ weight_NK.mT
    assert 0 < (got_TN - wanted_TN).norm() / wanted_TN.norm() < error


def test_a_rotation_of_both_sides_takes_the_error_of_outliers_away():
    """What QuaRot is for: the product is the same, the rounding of activations with a large channel is not."""
    x_TK, weight_NK = normal(20, 96), normal(48, 96, seed=1)
    x_TK[:, 5] *= 100.0
    wanted_TN = x_TK @ weight_NK.mT
    rotated = reference.hadamard(x_TK), reference.hadamard(weight_NK)
    torch.testing.assert_close(rotated[0] @ rotated[1].mT, wanted_TN)
    errors = []
    for x, weight in ((x_TK, weight_NK), rotated):
        got_TN = reference.quant_linear(x, *quantize_rows(weight, 8))
        errors.append(float((got_TN - wanted_TN).norm() / wanted_TN.norm()))
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("size", [1, 2, 8, 12, 20, 24, 48, 160, 6144 // 64])
def test_the_hadamard_matrix_is_orthonormal_and_flat(size):
    matrix = reference.hadamard_matrix(size, torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(matrix.abs(), torch.full((size, size), size**-0.5, dtype=torch.float64))


@pytest.mark.parametrize("size", [3, 28, 36])
def test_sizes_without_a_known_matrix_are_refused(size):
    with pytest.raises(ValueError, match=f"no Hadamard matrix of {size} rows"):
        reference.hadamard(torch.zeros(1, size))
