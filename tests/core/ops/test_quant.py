"""Integer weights: the error that rounding may leave, packing both ways, and the linear layer over them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.ops import reference
from arcforge_core.ops.quant import (
    INT4,
    INT4_GROUP_32,
    INT4_GROUP_128,
    INT8,
    Format,
    dequantise,
    from_records,
    integer_rows,
    pack_int4,
    quantise,
    to_records,
    unpack_int4,
)
from arcforge_core.ops.reference.quant_linear import MOST_COLUMNS, exact_product
from arcforge_core.ops.specs import SPECS

FORMATS = (INT8, INT4, INT4_GROUP_32, INT4_GROUP_128, Format(8, 32))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def each_scale(quantised, columns):
    return quantised.scale.repeat_interleave(columns // quantised.scale.shape[-1], -1)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.integers(0, 4),
    st.integers(1, 3),
    st.sampled_from([1e-30, 1e-7, 1.0, 1e3, 1e30]),
    st.integers(0, 99),
)
def test_rounding_is_off_by_half_a_step_at_most(form, dtype, rows, groups, size, seed):
    columns = groups * (form.group or 6)
    x_NK = (size * normal(rows, columns, seed=seed)).to(dtype)
    quantised = quantise(x_NK, form)
    integers_NK = integer_rows(quantised.values, columns)
    assert quantised.values.dtype == (torch.int8 if form.bits == 8 else torch.uint8)
    assert quantised.scale.shape == (rows, columns // (form.group or columns))
    assert rows == 0 or integers_NK.abs().max() <= form.largest
    step_NK = each_scale(quantised, columns).double()
    error_NK = (dequantise(quantised, torch.float64) - x_NK.double()).abs()
    assert (error_NK <= 0.5 * step_NK * (1 + 1e-5)).all()
    assert sum(x.numel() * x.element_size() for x in quantised._replace(scale=quantised.scale.float())) == (
        form.num_bytes(rows, columns)
    )


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(FORMATS), st.integers(1, 3), st.integers(0, 99))
def test_what_was_rounded_is_rounded_no_further(form, rows, seed):
    """Fake quantisation in training sees what serving computes with, so rounding twice must be rounding once."""
    columns = 2 * (form.group or 6)
    once = quantise(normal(rows, columns, seed=seed).float(), form)
    twice = quantise(dequantise(once), form)
    assert torch.equal(once.values, twice.values)
    torch.testing.assert_close(once.scale, twice.scale)


@pytest.mark.parametrize("form", FORMATS)
def test_groups_of_zeros_stay_zero_and_do_not_divide_by_zero(form):
    x_NK = torch.zeros(2, 256)
    x_NK[1, -1] = 3.0
    quantised = quantise(x_NK, form)
    assert (quantised.scale[0] == form.least_scale).all() and form.least_scale > 0
    assert torch.equal(dequantise(quantised) != 0, x_NK != 0)


def test_the_largest_of_each_group_is_exact_and_ties_go_to_even():
    x_NK = torch.tensor([[7.0, 0.5, 1.5, -2.5, 14.0, 1.0, 3.0, -14.0]])
    quantised = quantise(x_NK, Format(4, 4))
    assert quantised.scale.tolist() == [[1.0, 2.0]]
    assert unpack_int4(quantised.values).tolist() == [[7, 0, 2, -2, 7, 0, 2, -7]]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(poison):
    x_NK = torch.ones(2, 8)
    x_NK[0, 3] = poison
    wide_NK = dequantise(quantise(x_NK, INT8))
    assert not wide_NK[0].isfinite().all()
    assert wide_NK[1].isfinite().all()


@pytest.mark.parametrize(
    ("form", "columns", "reason"),
    [
        (INT4, 7, "must be even, not 7"),
        (INT4_GROUP_32, 48, "rows of 48 must be a multiple of the group size 32"),
        (INT4_GROUP_128, 64, "rows of 64 must be a multiple of the group size 128"),
        (INT8, 0, "rows of 0"),
    ],
)
def test_rows_that_do_not_fit_are_refused(form, columns, reason):
    with pytest.raises(ValueError, match=reason):
        quantise(torch.zeros(2, columns), form)


@pytest.mark.parametrize(
    ("bits", "group", "reason"), [(5, None, "bits=5: must be 8 or 4"), (4, 3, "group=3: must be even")]
)
def test_formats_that_nobody_defined_are_refused(bits, group, reason):
    with pytest.raises(ValueError, match=reason):
        Format(bits, group)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 40), st.floats(1e-6, 1e6), st.integers(0, 99))
def test_records_of_a_cache_hold_integers_and_their_scale(rows, columns, size, seed):
    x_TK = (size * normal(rows, columns, seed=seed)).float()
    records = to_records(x_TK)
    assert records.shape == (rows, columns + 4)
    assert torch.equal(from_records(records), dequantise(quantise(x_TK, INT8)))


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


@pytest.mark.parametrize(
    ("form", "rounds", "error"),
    [(INT8, True, 0.02), (INT4, True, 0.2), (INT4_GROUP_32, False, 0.12), (INT8, False, 0.01)],
)
def test_a_quantised_layer_is_close_to_the_one_it_came_from(form, rounds, error):
    x_TK, weight_NK = normal(20, 64), normal(48, 64, seed=1)
    got_TN = SPECS["quant_linear"].reference(x_TK, *quantise(weight_NK, form), None, rounds)
    wanted_TN = x_TK @ weight_NK.mT
    assert error / 4 < (got_TN - wanted_TN).norm() / wanted_TN.norm() < error


def test_integers_cannot_be_summed_over_groups_of_unlike_scales():
    with pytest.raises(ValueError, match=r"2 scales per output: .* need exactly one"):
        SPECS["quant_linear"].reference(normal(1, 64), *quantise(normal(4, 64), INT4_GROUP_32))


def test_a_rotation_of_both_sides_takes_the_error_of_outliers_away():
    """What QuaRot is for: the product is the same, the rounding of activations with a large channel is not."""
    x_TK, weight_NK = normal(20, 96), normal(48, 96, seed=1)
    x_TK[:, 5] *= 100.0
    wanted_TN = x_TK @ weight_NK.mT
    rotated = reference.hadamard(x_TK), reference.hadamard(weight_NK)
    torch.testing.assert_close(rotated[0] @ rotated[1].mT, wanted_TN)
    errors = []
    for x, weight in ((x_TK, weight_NK), rotated):
        got_TN = SPECS["quant_linear"].reference(x, *quantise(weight, INT8))
        errors.append(float((got_TN - wanted_TN).norm() / wanted_TN.norm()))
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("size", [1, 2, 8, 12, 20, 24, 48, 160, 6144 // 64])
def test_the_hadamard_matrix_is_orthonormal_and_flat(size):
    matrix = reference.hadamard_matrix(size, torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(matrix.abs(), torch.full((size, size), size**-0.5, dtype=torch.float64))


@pytest.mark.parametrize("size", [3, 28, 36])
def test_sizes_without_a_known_matrix_are_refused(size):
    with pytest.raises(ValueError, match=f"size={size}: must be 1, 12 or 20 times"):
        reference.hadamard(torch.zeros(1, size))


@pytest.mark.parametrize("columns", [1, 1023, 1025, 5000])
def test_products_of_integers_are_exact_at_their_largest(columns):
    x_TK = torch.full((2, columns), 127, dtype=torch.int8)
    weight_NK = torch.stack([x_TK[0], -x_TK[0]])
    x_TK[1, ::3] = -5
    wanted_TN = x_TK.long() @ weight_NK.long().mT
    assert torch.equal(exact_product(x_TK, weight_NK).long(), wanted_TN)


def test_products_of_rows_too_long_for_an_int32_are_refused():
    with pytest.raises(ValueError, match=f"rows of {MOST_COLUMNS + 1} must have at most {MOST_COLUMNS} columns"):
        exact_product(torch.zeros(1, MOST_COLUMNS + 1), torch.zeros(1, MOST_COLUMNS + 1))
