"""Quantised layers in C++: integer sums to the last bit, weights unpacked in registers, on other processors, too."""

import ctypes
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native as native
from arcforge_core.ops import reference
from arcforge_core.ops.cxx import cxx
from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, Format, Quantised, dequantise, integer_rows, quantise
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.cpu.native.quant_experts import quant_experts
from arcforge_hw.cpu.native.quant_linear import many_rows, quant_linear
from arcforge_hw.cpu.native.quant_mlp import quant_mlp
from arcforge_hw.cpu.native.quant_moe import quant_moe

SHAPES = (st.integers(1, 40), st.integers(1, 330), st.integers(1, 70), st.integers(0, 99))

KERNELS = {fn.__name__: fn for fn in (quant_mlp, quant_experts, quant_moe)}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()


def summed(x_TK, weight, scale_N1):
    """W8A8 with sums in int64: what any kernel must give to the last bit."""
    q_TK, scale_T1 = quantise(x_TK, INT8)
    sum_TN = q_TK.long() @ integer_rows(weight, x_TK.shape[1]).long().mT
    return sum_TN.float() * scale_T1 * scale_N1[:, 0]


@settings(max_examples=80, deadline=None)
@given(*SHAPES, st.sampled_from([INT8, INT4]), st.sampled_from([1e-6, 1.0, 1e6]))
def test_integer_sums_are_exact(rows, inputs, outputs, seed, form, size):
    """Few rows and many, parts of vectors, rows so small that their scale is the least one."""
    inputs += inputs % 2
    x_TK, weight = size * normal(rows, inputs, seed=seed), quantise(normal(outputs, inputs, seed=seed + 1), form)
    assert torch.equal(quant_linear(x_TK, *weight), summed(x_TK, *weight))


@pytest.mark.parametrize("form", [INT8, INT4])
@pytest.mark.parametrize("rows", [1, 5, 30])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_are_exact(form, rows, sign):
    """All values have the largest magnitude, enough of them for a sum of 16 bits, or a saturating one, to overflow."""
    x_TK, weight = torch.full((rows, 8192), 3.0), quantise(torch.full((9, 8192), sign * 2.0), form)
    wanted = summed(x_TK, *weight)
    assert torch.equal(quant_linear(x_TK, *weight), wanted)
    torch.testing.assert_close(wanted, torch.full((rows, 9), sign * 6.0 * 8192))


@settings(max_examples=60, deadline=None)
@given(*SHAPES, st.sampled_from([INT4_GROUP_32, Format(4, 128), INT4, Format(4, 8), INT8]), st.booleans())
def test_wide_activations_see_the_dequantised_weight(rows, inputs, outputs, seed, form, biased):
    inputs = -(-inputs // (form.group or 2)) * (form.group or 2)
    x_TK, weight = normal(rows, inputs, seed=seed), quantise(normal(outputs, inputs, seed=seed + 1), form)
    bias_N = normal(outputs) if biased else None
    wanted = x_TK.double() @ dequantise(weight, torch.float64).mT + (bias_N if biased else 0)
    got = quant_linear(x_TK, *weight, bias_N, False)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("form", "rounds"), [(INT8, True), (INT4, True), (INT4_GROUP_32, False), (INT4, False)])
def test_rows_and_threads_do_not_change_a_row(form, rounds):
    """The same bits alone, among others and by any number of threads; torch's product of many rows sums otherwise."""
    x_TK, weight = normal(16, 288), quantise(normal(200, 288, seed=1), form)
    together = quant_linear(x_TK, *weight, None, rounds)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            alone = torch.cat([quant_linear(x, *weight, None, rounds) for x in x_TK.split(1)])
            assert torch.equal(alone, together)
    finally:
        torch.set_num_threads(threads)
    many = many_rows(x_TK, *weight, None, rounds)
    if rounds:
        assert torch.equal(many, together)
    torch.testing.assert_close(many, together, rtol=1e-5, atol=1e-4)


def test_bfloat16_is_rounded_before_the_bias_as_the_reference_rounds():
    x_TK, weight, bias_N = normal(5, 96).bfloat16(), quantise(normal(70, 96, seed=1), INT8), normal(70).bfloat16()
    assert torch.equal(quant_linear(x_TK, *weight, bias_N), reference.quant_linear(x_TK, *weight, bias_N))


def test_a_large_weight_is_made_wide_in_parts(monkeypatch):
    monkeypatch.setattr(sys.modules[quant_linear.__module__], "BLOCK", 300)
    x_TK, weight = normal(20, 64), quantise(normal(50, 64, seed=1), INT4_GROUP_32)
    torch.testing.assert_close(quant_linear(x_TK, *weight, None, False), x_TK @ dequantise(weight).mT)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("rows", [2, 20])
def test_what_is_not_finite_shows_in_its_row_and_no_other(poison, rows):
    x_TK, weight = normal(rows, 64), quantise(normal(8, 64), INT8)
    clean = quant_linear(x_TK, *weight)
    x_TK[1, 5] = poison
    got = quant_linear(x_TK, *weight)
    assert not got[1].isfinite().any()
    assert torch.equal(got[0], clean[0])


def test_sizes_that_do_not_fit_are_refused():
    x_TK, weight = normal(2, 64), quantise(normal(8, 64), INT8)
    with pytest.raises(ValueError, match=r"weight must be int8 \[8, 62\]"):
        quant_linear(x_TK[:, :62].contiguous(), *weight)
    with pytest.raises(ValueError, match=r"weight must be int8 \[8, 64\] or packed int4"):
        quant_linear(x_TK, weight.values.float(), weight.scale)
    with pytest.raises(ValueError, match=r"2 scales per output: .* need exactly one"):
        quant_linear(x_TK, *quantise(normal(8, 64), INT4_GROUP_32))
    call = dict(op_cases("quant_experts")[0].inputs(torch.float32, "cpu"))
    with pytest.raises(ValueError, match="expert ids must be from 0 to 8, got 0 to 9"):
        quant_experts(**{**call, "expert_TK": torch.tensor([[0, 1, 9], [0, 1, 2]])})


def test_mixtures_whose_parts_do_not_fit_are_refused():
    """Every weight and scale in turn loses its last row: C++ would read beyond it."""
    call = dict(op_cases("quant_moe")[0].inputs(torch.float32, "cpu"))
    for name, value in call.items():
        if isinstance(value, torch.Tensor) and name != "x_TD":
            with pytest.raises(ValueError, match=r"must be|beside"):
                quant_moe(**{**call, name: value[:-1]})
    with pytest.raises(ValueError, match="chosen=10: must be from 1 to 9"):
        quant_moe(**{**call, "chosen": 10})


@pytest.mark.parametrize("kind", [0, 2, 4])
def test_a_token_of_a_mixture_is_the_same_whatever_else_is_decoded(kind):
    call = dict(op_cases("quant_moe")[kind + 1].inputs(torch.float32, "cpu"))
    whole = quant_moe(**call)
    for n in range(len(whole)):
        assert torch.equal(quant_moe(**{**call, "x_TD": call["x_TD"][n : n + 1]})[0], whole[n])


@pytest.mark.parametrize("op", KERNELS)
def test_layers_equal_the_references(op, monkeypatch):
    """Also in parts, as they run where there are many rows."""
    for case in op_cases(op):
        call = case.inputs(torch.float32, "cpu")
        wanted = getattr(reference, op)(**call)
        tolerance = {"rtol": 1e-4, "atol": 1e-4 * float(wanted.abs().max())}
        for few in (16, 0):
            monkeypatch.setattr(native, "QUANT_ROWS", few)
            torch.testing.assert_close(KERNELS[op](**call), wanted, **tolerance)


# ---- other processors ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["x86-64", "sandybridge", "x86-64-v3"])
def elsewhere(request, tmp_path_factory):
    """The same sources for processors without the instructions for sums of bytes, or without wide vectors."""
    path = tmp_path_factory.mktemp("native") / f"{request.param}.so"
    flags = [flag for flag in native.FLAGS if not flag.startswith(("-march", "-O"))]
    command = [
        *cxx(),
        *flags,
        "-O1",
        f"-march={request.param}",
        str(native.FOLDER / "quant.cpp"),
        "-o",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "bad value" in done.stderr:
        pytest.skip(f"this compiler knows no {request.param}")
    assert done.returncode == 0, done.stderr
    function = ctypes.CDLL(str(path)).arcforge_quant_linear_float32
    function.argtypes = native.types("5p 7i")
    return function


def run(function, x_TK, weight, bits, rounds):
    """Returns `quant_linear` of a compiled function; skips where this processor cannot run it."""
    if "avx2" not in native.processor():
        pytest.skip("this processor cannot run it")
    (rows, inputs), (outputs, groups) = x_TK.shape, weight.scale.shape
    out_TN = torch.empty(rows, outputs)
    places = native.pointers(x_TK, *weight)
    function(*places, 0, out_TN.data_ptr(), rows, inputs, outputs, groups, bits, rounds, 1)
    return out_TN


@pytest.mark.parametrize(
    ("form", "rounds"),
    [(INT8, True), (INT4, True), (INT4_GROUP_32, False), (Format(4, 128), False), (INT4, False)],
)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 32, 3), (2, 128, 9), (3, 96, 50), (6, 224, 51), (16, 640, 13)]
)
def test_other_processors_get_the_same(elsewhere, form, rounds, rows, inputs, outputs):
    """And a row gets the same bits alone; parts of vectors, rows that are no whole tile, more weights than a panel."""
    inputs = -(-inputs // (form.group or 2)) * (form.group or 2)
    x_TK, weight = normal(rows, inputs), Quantised(*quantise(normal(outputs, inputs, seed=1), form))
    out_TN, here = run(elsewhere, x_TK, weight, form.bits, rounds), quant_linear(x_TK, *weight, None, rounds)
    if rounds:
        assert torch.equal(out_TN, here)
    torch.testing.assert_close(out_TN, here, rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.cat([run(elsewhere, x, weight, form.bits, rounds) for x in x_TK.split(1)]), out_TN)


@pytest.mark.parametrize("value", [-128, 127, 0x88 - 256, 0x77, 0])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("sign", [1, -1])
def test_all_integers_are_summed_exactly(elsewhere, value, bits, sign):
    """Also those that our formats never write, -128 and -8, which other programs' weights may have."""
    x_TK = torch.full((5, 1026), float(sign))
    x_TK[:, ::3] = -0.4
    values = torch.full((6, 1026 * bits // 8), value, dtype=torch.int8)
    weight = Quantised(values if bits == 8 else values.view(torch.uint8), torch.ones(6, 1))
    wanted = summed(x_TK, *weight)
    assert torch.equal(run(elsewhere, x_TK, weight, bits, True), wanted)
    assert torch.equal(quant_linear(x_TK, *weight), wanted)
