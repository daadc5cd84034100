"""Routed experts of many rows in C++: values and gradients of the reference, whatever the number of threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.moe_experts as kernel
from arcforge_core.ops import reference

ROWS = 128
"""Of an expert, that C++ multiplies at a time."""


def make(tokens=70, experts=5, chosen=2, hidden=64, width=32, dtype=torch.float32, crowd=0.0):
    """Inputs of which all want a gradient; with `crowd` most tokens prefer the first experts."""
    draw = torch.Generator().manual_seed(tokens + experts)
    wish_TE = torch.randn(tokens, experts, generator=draw) - crowd * torch.arange(experts)
    shapes = (tokens, hidden), (experts, 2 * width, hidden), (experts, hidden, width)
    x, gate_up, down = (torch.randn(shape, generator=draw).div_(shape[-1] ** 0.5).to(dtype) for shape in shapes)
    gate_TK = torch.rand(tokens, chosen, generator=draw)
    floats = [(8 * x).requires_grad_(), *(w.requires_grad_() for w in (gate_up, down))]
    return [*floats, wish_TE.topk(chosen).indices, gate_TK.requires_grad_()]


def results(function, args):
    out = function(*args)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return out.detach(), *torch.autograd.grad(out, [args[n] for n in (0, 1, 2, 4)], cotangent)


def widest(args):
    """The largest differences from the reference in float64, each relative to the largest value."""
    exact = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in args]
    pairs = zip(results(kernel.moe_experts, args), results(reference.moe_experts, exact), strict=True)
    return [float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-2)) for got, wanted in pairs]


@pytest.fixture
def no_other_kernel(monkeypatch):
    monkeypatch.setattr(kernel.grouped, "moe_experts", None)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 2e-2)])
@settings(max_examples=25, deadline=None)
@given(st.integers(5, 2 * ROWS + 3), st.integers(4, 9), st.integers(1, 4), st.sampled_from([0.0, 0.5, 20.0]))
def test_equals_the_reference_in_float64(dtype, tolerance, tokens, experts, chosen, crowd):
    """Experts without rows, with an odd number of them, and with more than are multiplied at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel.grouped, "moe_experts", None)
        assert max(widest(make(tokens, experts, chosen, dtype=dtype, crowd=crowd))) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("hidden", "width"), [(32, 32), (96, 64), (160, 32), (384, 128), (48, 16), (256, 64), (64, 256)]
)
def test_sizes(monkeypatch, hidden, width, dtype):
    """Also rows of 1 KiB, which lie apart, and whole vectors of shorter ones than AVX512's alone."""
    if kernel.native.whole_vectors(width, torch.bfloat16):
        monkeypatch.setattr(kernel.grouped, "moe_experts", None)
    assert max(widest(make(hidden=hidden, width=width, dtype=dtype))) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_activations_saturate(no_other_kernel, dtype):
    args = make(dtype=dtype)
    args[0] = (1000 * args[0].detach()).requires_grad_()
    assert max(widest(args)) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_without_gradients_nothing_is_kept(no_other_kernel):
    args = [x.detach() for x in make()]
    assert kernel._forward(*args, False)[3].numel() == 0
    assert torch.equal(kernel.moe_experts(*args), kernel._forward(*args, True)[0])


def test_experts_without_tokens_get_zero_gradients(no_other_kernel):
    args = make(40, experts=6)
    args[3] = torch.tensor([[1, 4]] * 40)
    kernel.moe_experts(*args).sum().backward()  # a gradient with stride 0
    assert {e for e in range(6) if args[1].grad[e].any() or args[2].grad[e].any()} == {1, 4}


def test_frozen_weights_cost_nothing(no_other_kernel, monkeypatch):
    """The others' gradients are the same; a part of the inputs may want none."""
    needed, backward = [], kernel._backward
    monkeypatch.setattr(kernel, "_backward", lambda *args: (needed.append(args[-1]), backward(*args))[1])
    wanted = results(kernel.moe_experts, make())
    x, gate_up, down, expert_TK, gate = make()
    out = kernel.moe_experts(x, gate_up.detach(), down.detach(), expert_TK, gate)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    assert all(map(torch.equal, torch.autograd.grad(out, (x, gate), cotangent), (wanted[1], wanted[4])))
    kept = kernel._forward(*(v.detach() for v in (x, gate_up, down, expert_TK, gate)), True)[1:]
    assert needed == [True, False]
    given = [v.detach() for v in (cotangent, x, gate_up, down, gate)]
    assert [v.numel() for v in kernel._backward(*given, *kept, False)[1:3]] == [0, 0]


def test_one_token_without_numbers_spoils_its_own_gradients_alone(no_other_kernel):
    args = make(crowd=20.0)
    wanted = results(kernel.moe_experts, args)[1]
    with torch.no_grad():
        args[0][7] = torch.nan
    got = results(kernel.moe_experts, args)[1]
    others = torch.arange(70) != 7
    assert got[7].isnan().all()
    assert torch.equal(got[others], wanted[others])


def test_an_odd_row_has_no_neighbour_from_the_expert_before(no_other_kernel, monkeypatch):
    """One thread computes both: the last of 33 rows lies beside what the other's 34th left in memory, no number."""
    monkeypatch.setattr(kernel.torch, "get_num_threads", lambda: 1)
    args = make(73, experts=2, chosen=1, dtype=torch.bfloat16)
    args[3] = (torch.arange(73) >= 40).long()[:, None]
    with torch.no_grad():
        args[0][33] = torch.nan
    of_weights = results(kernel.moe_experts, args)[2:4]
    assert all(grad[0].isnan().any() and grad[1].isfinite().all() for grad in of_weights)


def test_recomputed_activations_change_no_bit(no_other_kernel):
    def again(*args):
        return torch.utils.checkpoint.checkpoint(kernel.moe_experts, *args, use_reentrant=False)

    assert all(map(torch.equal, results(again, make()), results(kernel.moe_experts, make())))


def test_gradients_of_what_was_not_kept_are_refused():
    out, order, ends, inner = kernel._forward(*(args := [x.detach() for x in make()]), False)
    x, gate_up, down, _, gate = args
    with pytest.raises(ValueError, match=r"inner_RF must be \[140, 64\], not \[0, 64\]"):
        kernel._backward(out, x, gate_up, down, gate, order, ends, inner, True)


def test_the_number_of_threads_changes_no_bit(no_other_kernel, monkeypatch):
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(results(kernel.moe_experts, make(experts=6)))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_strided_inputs_and_small_integers(no_other_kernel):
    x, gate_up, down, expert_TK, gate = make()
    strided = [torch.stack([x, x], -1)[..., 0], gate_up.mT.contiguous().mT, down, expert_TK.int(), gate]
    assert torch.equal(kernel.moe_experts(*strided), kernel.moe_experts(x, gate_up, down, expert_TK, gate))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad):
    args = [x.detach().requires_grad_(grad and x.is_floating_point()) for x in make()]
    torch.library.opcheck(torch.ops.arcforge_native.moe_experts.default, (*args, grad))


@pytest.mark.parametrize(
    "changes",
    [{"hidden": 40}, {"width": 24}, {"hidden": 1024, "width": 96}],
    ids=["no whole vectors", "nor here", "larger than the cache"],
)
def test_others_are_grouped(monkeypatch, changes):
    monkeypatch.setattr(kernel, "_forward", None)
    assert max(widest(make(**changes))) < 1e-5


@pytest.mark.parametrize(("shift", "found"), [(1, "1 to 5"), (-1, "-1 to 3")])
def test_expert_numbers_out_of_range_are_refused(no_other_kernel, shift, found):
    args = make()
    args[3] = args[3] + shift
    with pytest.raises(ValueError, match=f"expert ids must be from 0 to 4, got {found}"):
        kernel.moe_experts(*args)


def test_sizes_that_do_not_fit_together_are_refused(no_other_kernel):
    x, gate_up, down, expert_TK, gate = make()
    for args, message in (
        ((x[:, :32], gate_up, down, expert_TK, gate), r"x_TD must be \[70, 64\], not \[70, 32\]"),
        ((x, gate_up[:, :32], down, expert_TK, gate), r"gate_up_EFD must be \[5, 64, 64\], not \[5, 32, 64\]"),
        ((x, gate_up, down, expert_TK, gate[:3]), r"gate_TK must be \[70, 2\], not \[3, 2\]"),
        ((x.bfloat16(), gate_up, down, expert_TK, gate), "tensors of one dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel.moe_experts(*args)
