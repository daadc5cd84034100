"""Chunks of the gated delta rule against the naive recurrence: gradients, ragged segments, cuts, strong decays."""

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.torch_ops.gated_delta_rule as kernel
from arcforge_core.contracts.batch import cumulative
from arcforge_core.contracts.device import Capabilities
from arcforge_core.ops import reference

LENGTHS = st.integers(1, 20) | st.integers(1, 140) | st.sampled_from([63, 64, 65, 127, 128, 129])


def make(lengths, heads=2, key=5, value=7, dtype=torch.float64, past=True, decay=0.3):
    generator = torch.Generator().manual_seed(sum(lengths))

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64)

    tokens = sum(lengths)
    wide = torch.promote_types(dtype, torch.float32)
    q, k = (F.normalize(draw(tokens, heads, key) + shift, dim=-1).to(dtype) for shift in (0.0, 0.5))
    v, g, beta = draw(tokens, heads, value).to(dtype), -decay * draw(tokens, heads).square(), draw(tokens, heads)
    state = past * draw(len(lengths), heads, key, value)
    given = q, k, v, g.to(wide), beta.sigmoid().to(wide), state.to(wide)
    return [*(x.requires_grad_() for x in given), cumulative(lengths), 0.4]


def results(fn, args):
    outs = fn(*args)
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in outs]
    return *outs, *torch.autograd.grad(outs, args[:6], cotangents)


def assert_equal_to_reference(args, tolerance=1e-11):
    exact = [x.detach().double().requires_grad_() for x in args[:6]]
    for got, wanted in zip(
        results(kernel.gated_delta_rule, args), results(reference.gated_delta_rule, [*exact, *args[6:]]), strict=True
    ):
        error = float((got.detach().double() - wanted.detach()).abs().max())
        assert error <= tolerance * max(1.0, float(wanted.detach().abs().max()))


@settings(max_examples=25)
@given(st.lists(LENGTHS, min_size=1, max_size=5), st.booleans(), st.sampled_from([0.0, 0.05, 3.0]))
def test_equals_the_reference(lengths, past, decay):
    assert_equal_to_reference(make(lengths, past=past, decay=decay))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)], ids=str)
def test_equals_the_reference_in_lower_precision(dtype, tolerance):
    assert_equal_to_reference(make([1, 200, 64, 5, 33], key=32, value=16, dtype=dtype), tolerance)


def test_a_chip_without_float64_computes_none(monkeypatch):
    args = make([1, 70, 5], dtype=torch.float32)
    wanted = results(reference.gated_delta_rule, args)
    monkeypatch.setattr(kernel, "capabilities_of", lambda device: Capabilities())
    monkeypatch.setattr(torch.Tensor, "double", None)
    for got, value in zip(results(kernel.gated_delta_rule, args), wanted, strict=True):
        torch.testing.assert_close(got, value, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("has_float64", [True, False])
def test_weak_decays_after_strong_ones_are_not_lost(monkeypatch, has_float64):
    """Sums of g in fp32 would be wrong by 1e-3 after the first tokens."""
    monkeypatch.setattr(kernel, "capabilities_of", lambda device: Capabilities(float64=has_float64))
    args = make([64], dtype=torch.float32)
    with torch.no_grad():
        args[3][:20], args[3][20:] = -400.0, -0.01
    assert_equal_to_reference(args, 2e-5)


def test_many_chunks_that_are_computed_in_several_blocks(monkeypatch):
    args = make([300, 700, 64, 1, 130])
    wanted = results(kernel.gated_delta_rule, args)
    monkeypatch.setattr(kernel, "BLOCK", 1)
    for got, one_block in zip(results(kernel.gated_delta_rule, args), wanted, strict=True):
        torch.testing.assert_close(got, one_block, rtol=1e-12, atol=1e-12)
    assert_equal_to_reference(args)


def test_cut_where_you_like():
    *values, state, _, scale = make([150], past=False)
    whole, last = kernel.gated_delta_rule(*values, state, cumulative([150]), scale)
    outs = []
    for part in zip(*(x.split([70, 1, 3, 64, 12]) for x in values), strict=True):
        out, state = kernel.gated_delta_rule(*part, state, cumulative([len(part[0])]), scale)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


def test_gradcheck():
    args = make([3, 1, 6], heads=1, key=2, value=3)
    assert torch.autograd.gradcheck(lambda *given: kernel.gated_delta_rule(*given, *args[6:]), args[:6])


@pytest.mark.parametrize("used", [0, 1])
def test_one_output_alone_is_enough_for_a_gradient(used):
    args = make([3, 70])
    grads = [
        torch.autograd.grad(fn(*args)[used].square().sum(), args[1:6])
        for fn in (kernel.gated_delta_rule, reference.gated_delta_rule)
    ]
    for ours, naive in zip(*grads, strict=True):
        torch.testing.assert_close(ours, naive)


@pytest.mark.parametrize("keep", [False, True])
def test_opcheck(keep):
    args = [
        x.detach().requires_grad_(keep) if isinstance(x, torch.Tensor) and i < 6 else x
        for i, x in enumerate(make([3, 17]))
    ]
    torch.library.opcheck(torch.ops.arcforge_torch.gated_delta_rule.default, (*args, keep))


def test_short_segments_do_not_fill_large_chunks():
    for lengths in ([1] * 9, [4, 3, 4], [16, 13], [30, 32], [64, 128, 100]):
        layouts = kernel.lay_chunks((0, *cumulative(lengths)[1:].tolist()), 2, torch.device("cpu"))
        assert sum(layout.steps[-1].stop * layout.size for layout in layouts) <= 2 * 1.35 * sum(lengths)


def test_a_layout_made_for_generation_serves_training():
    args = make([5, 1])
    kernel.lay_chunks.cache_clear()
    with torch.inference_mode():
        kernel.gated_delta_rule(*args)
    assert_equal_to_reference(args)


def test_activations_may_be_computed_again():
    args = make([3, 70])
    plain, again = (
        results(fn, args)
        for fn in (
            kernel.gated_delta_rule,
            lambda *given: torch.utils.checkpoint.checkpoint(kernel.gated_delta_rule, *given, use_reentrant=False),
        )
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_little_is_kept_for_the_backward_pass():
    """Inputs and one state a chunk, not one a token nor products of keys."""
    args, sizes = make([1024], key=16, value=16, dtype=torch.float32), []

    def pack(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kernel.gated_delta_rule(*args)
    assert sum(sizes) <= sum(x.numel() for x in args[:5]) + 1024 // 64 * 2 * 16 * 16 + 2
