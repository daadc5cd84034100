"""Products, norms, rotations and experts of few rows in C++: the references' values, in any number of threads."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.ops import reference
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.linear import linear
from arcforge_hw.cpu.native.moe_experts import moe_experts
from arcforge_hw.cpu.native.rms_norm import rms_norm
from arcforge_hw.cpu.native.rope import rope

few = SimpleNamespace(linear=linear, moe_experts=moe_experts, rms_norm=rms_norm, rope=rope)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def experts_call(tokens=2, experts=16, chosen=4, hidden=64, width=32, seed=0, dtype=torch.float32):
    """Tokens that choose some of many experts."""
    draw = torch.Generator().manual_seed(seed)
    expert_TK = torch.stack([torch.randperm(experts, generator=draw)[:chosen] for _ in range(tokens)])
    gate_TK = torch.rand(tokens, chosen, generator=draw)
    shapes = (tokens, hidden), (experts, 2 * width, hidden), (experts, hidden, width)
    x_TD, gate_up_EFD, down_EDF = (normal(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes))
    return x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK


def calls(dtype=torch.float32):
    """One call of each op that goes to C."""
    angle_TF = normal(3, 8, seed=5)
    yield few.linear, reference.linear, (normal(3, 64, dtype=dtype), normal(50, 64, seed=1, dtype=dtype))
    yield few.rms_norm, reference.rms_norm, (normal(3, 40, dtype=dtype), normal(40, seed=1, dtype=dtype), 1e-5)
    yield few.rope, reference.rope, (normal(3, 5, 16, dtype=dtype), angle_TF.cos(), angle_TF.sin())
    if dtype != torch.float64:
        yield few.moe_experts, reference.moe_experts, experts_call(dtype=dtype)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 110), st.booleans(), st.sampled_from(["f32", "f64"]))
def test_linear_equals_the_reference(rows, vectors, outputs, biased, kind):
    """Blocks of outputs with some left over, tiles of rows with some left over, more rows than few."""
    dtype = {"f32": torch.float32, "f64": torch.float64}[kind]
    x, weight = normal(rows, 16 * vectors, dtype=dtype), normal(outputs, 16 * vectors, seed=1, dtype=dtype)
    bias = normal(outputs, seed=2, dtype=dtype) if biased else None
    wanted = reference.linear(x.double(), weight.double(), None if bias is None else bias.double())
    tolerance = 1e-5 if kind == "f32" else 1e-12
    torch.testing.assert_close(few.linear(x, weight, bias).double(), wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 4), st.integers(1, 110), st.booleans())
def test_linear_in_bfloat16_is_an_exact_sum_rounded_once(rows, vectors, outputs, biased):
    """More rows than sums are kept for at a time, all tiles, columns that are left over."""
    x, weight = (normal(n, 32 * vectors, seed=n, dtype=torch.bfloat16) for n in (rows, outputs))
    bias = normal(outputs, seed=2, dtype=torch.bfloat16) if biased else None
    wanted = reference.linear(x.double(), weight.double(), None if bias is None else bias.double())
    out = few.linear(x, weight, bias)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_whatever_the_number_of_rows(dtype):
    x, weight = normal(native.FEW_ROWS, 96, dtype=dtype), normal(110, 96, seed=1, dtype=dtype)
    whole = few.linear(x, weight)
    for rows in (1, 2, 3, 5, 6, 7, 8, 9, 13, 16, 17, 23, 24, 30, 40):
        assert torch.equal(few.linear(x[:rows], weight), whole[:rows])


def test_products_of_bfloat16_go_to_c():
    called = []
    x, weight = normal(2, 64, dtype=torch.bfloat16), normal(50, 64, seed=1, dtype=torch.bfloat16)
    with native.listening(lambda name, *_: called.append(name)):
        few.linear(x, weight)
        few.moe_experts(*experts_call(dtype=torch.bfloat16))
        few.linear(normal(native.FEW_ROWS + 1, 64, dtype=torch.bfloat16), weight)
        few.linear(x[:, :40], weight[:, :40].contiguous())  # no whole vectors
    assert called == ["arcforge_linear_bfloat16", "arcforge_experts_bfloat16"]


def test_experts_in_bfloat16_are_near_the_reference():
    call = experts_call(5, 20, 3, 96, 64, dtype=torch.bfloat16)
    wanted = reference.moe_experts(*(x.double() if x.is_floating_point() else x for x in call))
    error = (few.moe_experts(*call).double() - wanted).abs().max()
    assert error <= 1e-2 * wanted.abs().max()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.integers(0, 9))
def test_experts_equal_the_reference(tokens, chosen, hidden, width, seed):
    call = experts_call(tokens, 20, chosen, 8 * hidden, 8 * width, seed)
    wanted = reference.moe_experts(*(x.double() if x.is_floating_point() else x for x in call))
    torch.testing.assert_close(few.moe_experts(*call).double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_norm_and_rotation_of_strided_rows(dtype):
    """Parts of wider rows, as the latent and the rotated part are."""
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float64: 1e-12}[dtype]
    wide_TX, angle_TF = normal(7, 3 * 24, dtype=dtype), normal(7, 4, seed=1)
    latent_TC, weight = wide_TX[:, 5:29], normal(24, seed=2, dtype=dtype)
    rotated_THR = wide_TX.view(7, 3, 24)[..., 16:]
    for got, wanted in (
        (few.rms_norm(latent_TC, weight, 1e-6), reference.rms_norm(latent_TC, weight, 1e-6)),
        (
            few.rope(rotated_THR, angle_TF.cos(), angle_TF.sin()),
            reference.rope(rotated_THR, angle_TF.cos(), angle_TF.sin()),
        ),
    ):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", range(4), ids=["linear", "rms_norm", "rope", "moe_experts"])
def test_the_number_of_threads_changes_no_bit(number, dtype, monkeypatch):
    fn, _, call = list(calls(dtype))[number]
    found = []
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(fn(*call))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_product_is_shared_by_threads_without_changing_a_bit(dtype, monkeypatch):
    """Large enough for the kernel to use its threads."""
    x, weight = normal(2, 512, dtype=dtype), normal(700, 512, seed=1, dtype=dtype)
    experts = experts_call(4, 16, 4, 256, 128, dtype=dtype)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append((few.linear(x, weight), few.moe_experts(*experts)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", range(3), ids=["linear", "rms_norm", "rope"])
def test_gradients_take_the_path_that_has_them(number, dtype):
    fn, plain, (x, *rest) = list(calls(dtype))[number]
    grads = []
    for op in (fn, plain):
        leaf = x.clone().requires_grad_()
        grads.append(torch.autograd.grad(op(leaf, *rest).square().sum(), leaf)[0])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_gradcheck_of_the_rotation():
    x_THR, angle_TF = normal(3, 2, 6, dtype=torch.float64).requires_grad_(), normal(3, 3, seed=1, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: few.rope(x, angle_TF.cos(), angle_TF.sin()), (x_THR,))


def test_opcheck_of_the_rotation():
    args = op_cases("rope")[0].inputs(torch.float32, "cpu")
    inputs = args["x_THR"].requires_grad_(), args["cos_TF"], args["sin_TF"], 1.0
    torch.library.opcheck(torch.ops.arcforge_native.rope.default, inputs)


def test_experts_that_nobody_chose_are_never_read():
    x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK = experts_call()
    unused = torch.ones(len(down_EDF), dtype=torch.bool)
    unused[expert_TK.flatten()] = False
    poisoned = [weight.masked_fill(unused[:, None, None], float("nan")) for weight in (gate_up_EFD, down_EDF)]
    assert unused.any()
    assert few.moe_experts(x_TD, *poisoned, expert_TK, gate_TK).isfinite().all()


@pytest.mark.parametrize("wrong", [-1, 16])
def test_experts_that_do_not_exist_are_refused(wrong):
    x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK = experts_call()
    expert_TK[1, 2] = wrong
    with pytest.raises(ValueError, match=f"from 0 to 15, got .*{wrong}"):
        few.moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)


def test_tables_of_other_lengths_are_refused():
    angle_TF = normal(2, 8)
    with pytest.raises(ValueError, match=r"cos_TF must be \[3, 8\], not \[2, 8\]"):
        few.rope(normal(3, 1, 16), angle_TF.cos(), angle_TF.sin())


@pytest.mark.parametrize("number", range(4), ids=["linear", "rms_norm", "rope", "moe_experts"])
def test_traced_calls_do_not_reach_into_memory(number):
    """Fake tensors have none: the shapes must come from torch."""
    fn, plain, call = list(calls())[number]
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        faked = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in call]
        got = fn(*faked)
    assert isinstance(got, torch._subclasses.FakeTensor)
    assert got.shape == plain(*call).shape


def test_what_would_be_read_beyond_its_end_is_refused():
    x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK = experts_call()
    for run, message in (
        (lambda: few.linear(normal(2, 16), normal(5, 32)), "shapes"),
        (lambda: few.linear(normal(2, 16), normal(5, 16), normal(4)), "size"),
        (lambda: few.rms_norm(normal(2, 16), normal(8), 1e-6), r"weight must be \[16\], not \[8\]"),
        (lambda: few.rope(normal(2, 1, 7), normal(2, 3), normal(2, 3)), "width 7: must be even"),
        (lambda: few.moe_experts(x_TD[:, :8], gate_up_EFD, down_EDF, expert_TK, gate_TK), "x_TD must be"),
        (lambda: few.moe_experts(x_TD, gate_up_EFD[:9], down_EDF, expert_TK, gate_TK), "gate_up_EFD must be"),
        (lambda: few.moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK[:1]), "gate_TK must be"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            run()


def test_expert_numbers_of_32_bits():
    *weights, expert_TK, gate_TK = experts_call()
    wanted = few.moe_experts(*weights, expert_TK, gate_TK)
    assert torch.equal(few.moe_experts(*weights, expert_TK.int(), gate_TK), wanted)
