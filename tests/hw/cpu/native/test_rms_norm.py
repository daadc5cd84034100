"""RMSNorm of many rows in C++: values and gradients of the reference, whatever the number of threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.rms_norm as kernel
from arcforge_core.ops import reference

BF16, FP32 = torch.bfloat16, torch.float32


def make(rows, width, dtype=BF16):
    draw = torch.Generator().manual_seed(rows * 1000 + width)
    x, grad = (torch.randn(rows, width, generator=draw).to(dtype) for _ in range(2))
    return x.requires_grad_(), (1 + torch.rand(width, generator=draw)).requires_grad_(), grad


def results(fn, x, weight, grad):
    out = fn(x, weight, 1e-5)
    return out, *torch.autograd.grad(out, (x, weight), grad)


@pytest.mark.parametrize(("dtype", "tolerances"), [(BF16, (1.2e-2, 1.2e-2, 1e-6)), (FP32, (1e-6, 2e-6, 1e-6))])
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 140), st.integers(1, 70))
def test_equals_the_reference_in_float64(dtype, tolerances, rows, width):
    """Rows that end inside a block, widths that end inside a vector."""
    x, weight, grad = make(rows, width, dtype)
    exact = (x.detach().double().requires_grad_(), weight.detach().double().requires_grad_(), grad.double())
    got, wanted = results(kernel.differentiable, x, weight, grad), results(reference.rms_norm, *exact)
    size_R = (x.double().square().mean(1) + 1e-5).sqrt()
    differences = (grad * weight).abs().max() / size_R.min()  # x's gradient is one
    sums = (grad.double() * x.double() / size_R[:, None]).abs().sum(0).max()  # the weight's is one, in fp32
    scales = max(wanted[0].abs().max(), 1e-2), differences, max(sums, 1e-2)
    for a, b, tolerance, scale in zip(got, wanted, tolerances, scales, strict=True):
        assert (a - b).abs().max() <= tolerance * scale
    assert [a.dtype for a in got] == [dtype, dtype, FP32]


def test_forward_rounds_where_the_reference_does():
    """Products that end up halfway between two numbers aside."""
    x, weight, _ = make(300, 64)
    differ = kernel.differentiable(x, weight, 1e-5) != reference.rms_norm(x, weight, 1e-5)
    assert differ.float().mean() < 1e-2


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_the_number_of_threads_changes_no_bit(monkeypatch, dtype):
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(results(kernel.differentiable, *make(200, 48, dtype)))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_strided_rows_and_gradients(dtype):
    x, weight, grad = make(70, 40, dtype)
    both = torch.cat((x, x), dim=1).detach().requires_grad_()
    out = kernel.differentiable(both[:, :40], weight, 1e-5)
    got = torch.autograd.grad(out, (both, weight), grad.mT.contiguous().mT)
    wanted = results(kernel.differentiable, x, weight, grad)
    assert torch.equal(out, wanted[0])
    assert torch.equal(got[0][:, :40], wanted[1])
    assert torch.equal(got[1], wanted[2])


def test_other_precisions_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(kernel, "_forward", None)
    x, weight = torch.randn(3, 8, dtype=torch.float64), torch.ones(8)
    torch.testing.assert_close(kernel.differentiable(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


def test_a_weight_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"weight must be \[8\], not \[6\]"):
        kernel.differentiable(torch.ones(3, 8).bfloat16(), torch.ones(6), 1e-5)


def test_opcheck():
    x, weight, _ = make(5, 12)
    torch.library.opcheck(torch.ops.arcforge_native.rms_norm.default, (x, weight, 1e-5))
