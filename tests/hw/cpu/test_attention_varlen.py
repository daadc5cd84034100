"""Tiled attention: gradients in float64, registration, ragged segments, tiles, recomputation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.attention_varlen as kernel
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference


def make(queries, keys, heads=4, groups=2, key_dim=6, value_dim=5, dtype=torch.float64, grad=True):
    generator = torch.Generator().manual_seed(sum(keys))
    sizes = (sum(queries), heads, key_dim), (sum(keys), groups, key_dim), (sum(keys), groups, value_dim)
    q, k, v = (torch.randn(size, generator=generator, dtype=dtype).requires_grad_(grad) for size in sizes)
    return q, k, v, cumulative(queries), cumulative(keys), key_dim**-0.5


def results(fn, args):
    out = fn(*args)
    grads = torch.autograd.grad(out.square().sum(), args[:3])
    return out, *grads


def assert_equal_to_reference(args, tolerance):
    for got, wanted in zip(
        results(kernel.attention_varlen, args), results(reference.attention_varlen, args), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(kernel, "TILE", 4)


@pytest.fixture
def recompute(monkeypatch):
    monkeypatch.setattr(kernel, "KEEP_KEYS", 5)


def test_gradcheck(small_tiles, recompute):
    args = make([3, 1, 6], [3, 4, 9], heads=2, groups=1, key_dim=3, value_dim=2)
    assert torch.autograd.gradcheck(lambda q, k, v: kernel.attention_varlen(q, k, v, *args[3:]), args[:3])


@pytest.mark.parametrize("keep", [False, True])
def test_opcheck(keep):
    q, k, v, *rest = make([3, 1], [3, 4], grad=keep)
    torch.library.opcheck(torch.ops.arcforge_cpu.attention_varlen.default, (q, k, v, *rest, keep))


def test_opcheck_backward():
    q, k, v, *rest = make([3, 1], [3, 4], grad=False)
    out, kept = torch.ops.arcforge_cpu.attention_varlen(q, k, v, *rest, True)
    args = (torch.ones_like(out), q, k, v, kept, *rest)
    torch.library.opcheck(torch.ops.arcforge_cpu.attention_varlen_backward.default, args)


@settings(max_examples=40, deadline=None)
@given(
    segments=st.lists(st.tuples(st.integers(1, 11), st.integers(0, 9)), min_size=1, max_size=6),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    keep_keys=st.sampled_from([1, 8, 1024]),
)
def test_any_segments_equal_the_reference(segments, heads, keep_keys):
    queries, keys = [q for q, _ in segments], [q + past for q, past in segments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "TILE", 4)
        patch.setattr(kernel, "KEEP_KEYS", keep_keys)
        assert_equal_to_reference(make(queries, keys, *heads), 1e-10)


@pytest.mark.parametrize("scores", [1, 1 << 20], ids=["one by one", "batched"])
def test_equal_neighbours_are_batched_with_the_same_result(scores, monkeypatch, small_tiles):
    monkeypatch.setattr(kernel, "SCORES", scores)
    args = make([5, 5, 5, 2, 2], [5, 5, 5, 8, 8])
    assert len(kernel.runs(args[3], args[4], heads=4)) == (5 if scores == 1 else 2)
    assert_equal_to_reference(args, 1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 6e-2)])
def test_real_tiles_beyond_the_kept_length(dtype, tolerance, monkeypatch):
    monkeypatch.setattr(kernel, "KEEP_KEYS", 300)
    assert_equal_to_reference(make([300, 70, 400], [300, 90, 410], 2, 1, 16, 8, dtype), tolerance)


def test_probabilities_are_kept_only_when_a_gradient_may_be_asked(monkeypatch):
    asked = []
    original = kernel._forward
    monkeypatch.setattr(kernel, "_forward", lambda *args: asked.append(args[-1]) or original(*args))
    kernel.attention_varlen(*make([3], [3]))
    kernel.attention_varlen(*make([3], [3], grad=False))
    with torch.no_grad():
        kernel.attention_varlen(*make([3], [3]))
    assert asked == [True, False, False]


def test_strided_inputs_and_expanded_gradients():
    q, k, v, *rest = make([4, 7], [4, 7], groups=4, value_dim=6)
    fused = torch.stack([q, k, v], dim=2).detach().requires_grad_()
    out = kernel.attention_varlen(*fused.unbind(2), *rest)
    out.sum().backward()  # a gradient with stride 0
    wanted = torch.autograd.grad(reference.attention_varlen(q, k, v, *rest).sum(), (q, k, v))
    torch.testing.assert_close(fused.grad, torch.stack(wanted, dim=2))


def test_compiles_to_one_graph():
    args = make([3, 4], [3, 6], grad=False)
    compiled = torch.compile(kernel.attention_varlen, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), reference.attention_varlen(*args))
