"""Attention inside short segments in C++: the reference's values and gradients, in any number of threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.attention_varlen as kernel
import arcforge_hw.torch_ops.selected_attention as tiles
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_core.testing.attention_inputs import selection


def make(segments, heads=4, groups=2, key_dim=6, value_dim=5, dtype=torch.float64):
    """Random inputs for segments of (queries, past)."""
    draw = torch.Generator().manual_seed(len(segments))
    queries, keys = [q for q, _ in segments], [q + past for q, past in segments]
    sizes = (sum(queries), heads, key_dim), (sum(keys), groups, key_dim), (sum(keys), groups, value_dim)
    q, k, v = (torch.randn(size, generator=draw, dtype=dtype).requires_grad_() for size in sizes)
    return q, k, v, cumulative(queries), cumulative(keys), key_dim**-0.5


def results(fn, call):
    out = fn(*call)
    cotangent = torch.linspace(-1, 1, out.numel()).to(out).view_as(out)
    return out, *torch.autograd.grad(out, call[:3], cotangent)


def assert_equal_to_reference(call, tolerance):
    for got, wanted in zip(
        results(kernel.attention_varlen, call), results(reference.attention_varlen, call), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 70)), min_size=1, max_size=4),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_equals_the_reference(segments, heads, key_dim, value_dim):
    """Sizes that are no whole vectors, blocks of queries with some left over, pasts, shared keys."""
    assert_equal_to_reference(make(segments, *heads, key_dim, value_dim), 1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 6e-2)])
def test_lower_precisions(dtype, tolerance):
    assert_equal_to_reference(make([(130, 0), (1, 90), (40, 3)], 2, 1, 32, 24, dtype), tolerance)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 70)), min_size=1, max_size=3),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([0, 1, 9, 90]),
)
def test_bfloat16_equals_the_reference_in_float64(segments, heads, key_dim, value_dim, topk):
    """Odd sizes, whose last number has no neighbour to make a pair with; `topk` 0 is dense."""
    q, k, v, cu_query, cu_key, scale = make(segments, *heads, key_dim, value_dim, torch.bfloat16)
    exact = tuple(x.detach().double().requires_grad_() for x in (q, k, v))
    fns, more = (kernel.attention_varlen, reference.attention_varlen), ()
    if topk:
        queries, keys = [n for n, _ in segments], [n + past for n, past in segments]
        more = (selection(torch.Generator().manual_seed(topk), queries, keys, topk),)
        fns = kernel.selected_attention, reference.selected_attention
    got = results(fns[0], (q, k, v, *more, cu_query, cu_key, scale))
    wanted = results(fns[1], (*exact, *more, cu_query, cu_key, scale))
    for a, b in zip(got, wanted, strict=True):
        # weights times values of size 1, each rounded to 2^-9: the errors add up however far the terms cancel
        assert (a - b).abs().max() <= 1.5e-2 * max(b.abs().max(), 0.3)


def test_bfloat16_never_sees_later_keys_whatever_they_are():
    q, k, v, cu_query, cu_key, scale = make([(40, 0)], dtype=torch.bfloat16)
    spoilt = [torch.cat((x[:33], torch.full_like(x[33:], torch.nan))).detach().requires_grad_() for x in (k, v)]
    got, clean = (kernel.attention_varlen(q, *kv, cu_query, cu_key, scale)[:32] for kv in (spoilt, (k, v)))
    assert torch.equal(got, clean)
    cotangent = torch.ones(32, 4, 5).bfloat16()
    for a, b in zip(*(torch.autograd.grad(x, q, cotangent) for x in (got, clean)), strict=True):
        assert torch.equal(a[:32], b[:32])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit(dtype, monkeypatch):
    call = make([(70, 0), (33, 40), (1, 5)], 6, 3, 48, 40, dtype)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(results(kernel.attention_varlen, call))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_a_segment_does_not_depend_on_its_neighbours():
    q, k, v, *_, scale = make([(20, 0), (30, 0)], dtype=torch.float32)
    both = kernel.attention_varlen(q, k, v, cumulative([20, 30]), cumulative([20, 30]), scale)
    one = kernel.attention_varlen(q[20:], k[20:], v[20:], cumulative([30]), cumulative([30]), scale)
    assert torch.equal(both[20:], one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("topk", [0, 3])
def test_what_is_not_finite_stays_in_its_segment(dtype, topk, monkeypatch):
    """Also where the next one has an odd number of rows, or fewer keys: of scratch memory it reads what it wrote."""
    monkeypatch.setattr(kernel.torch, "get_num_threads", lambda: 1)
    q, k, v, cu_query, cu_key, scale = make([(4, 0), (1, 0), (3, 0)], dtype=dtype)
    fn, more = kernel.attention_varlen, ()
    if topk:
        fn = kernel.selected_attention
        more = (selection(torch.Generator().manual_seed(0), [4, 1, 3], [4, 1, 3], topk),)
    spoilt = q.detach().clone()
    spoilt[:4] = torch.nan
    got = results(fn, (spoilt.requires_grad_(), k, v, *more, cu_query, cu_key, scale))
    clean = results(fn, (q, k, v, *more, cu_query, cu_key, scale))
    for a, b in zip(got, clean, strict=True):
        assert torch.equal(a[4:], b[4:])


def test_later_keys_are_never_seen():
    q, k, v, cu_query, cu_key, scale = make([(40, 0)], dtype=torch.float32)
    spoilt = [x.detach().clone() for x in (k, v)]
    for x in spoilt:
        x[33:] = 1e3
    got = kernel.attention_varlen(q, *spoilt, cu_query, cu_key, scale)
    assert torch.equal(got[:33], kernel.attention_varlen(q, k, v, cu_query, cu_key, scale)[:33])


def test_scores_that_differ_by_thousands():
    q, k, v, *rest = make([(50, 0)], dtype=torch.float32)
    call = tuple((x.detach() * s).requires_grad_() for x, s in ((q, 300), (k, 30), (v, 1)))
    exact = tuple(x.detach().double().requires_grad_() for x in call)
    for got, wanted in zip(
        results(kernel.attention_varlen, (*call, *rest)),
        results(reference.attention_varlen, (*exact, *rest)),
        strict=True,
    ):
        assert (got - wanted).abs().max() <= 2e-2 * wanted.abs().max()  # scores of 9,000 are known to 5e-4


def test_gradcheck():
    call = make([(3, 0), (2, 4)], 2, 1, 3, 2)
    assert torch.autograd.gradcheck(lambda q, k, v: kernel.attention_varlen(q, k, v, *call[3:]), call[:3])


@pytest.mark.parametrize("selected", [False, True])
def test_opcheck(selected):
    *call, scale = make([(3, 1), (4, 0)])
    indices_TN = selection(torch.Generator().manual_seed(0), [3, 4], [4, 4], 2) if selected else None
    torch.library.opcheck(torch.ops.arcforge_native.attention_varlen.default, (*call, indices_TN, scale))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 70)), min_size=1, max_size=3),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(1, 90),
    st.sampled_from([kernel.selected_attention, tiles.selected_attention]),
)
def test_selected_keys_equal_the_reference(segments, heads, topk, fn):
    q, k, v, cu_query, cu_key, scale = make(segments, *heads, 7, 9)
    draw = torch.Generator().manual_seed(topk)
    indices_TN = selection(draw, [n for n, _ in segments], [n + past for n, past in segments], topk)
    call = q, k, v, indices_TN, cu_query, cu_key, scale
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SCORES", 500)
        for got, wanted in zip(results(fn, call), results(reference.selected_attention, call), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def test_a_selection_of_all_visible_keys_is_dense_attention():
    *call, scale = make([(40, 0)], dtype=torch.float32)
    every = torch.arange(40).expand(40, 40)
    every = torch.where(every <= torch.arange(40)[:, None], every, -1)
    got, wanted = kernel.selected_attention(*call[:3], every, *call[3:], scale), kernel.attention_varlen(*call, scale)
    assert torch.equal(got, wanted)


def test_selections_of_keys_that_a_query_does_not_see_are_refused():
    q, k, v, *rest = make([(3, 1)])
    with pytest.raises(IndexError, match="does not see"):
        kernel.selected_attention(q, k, v, torch.tensor([[0], [3], [2]]), *rest)
    with pytest.raises(ValueError, match=r"indices_TN .*must be int64 with 3 rows"):
        kernel.selected_attention(q, k, v, torch.tensor([[0], [1]]), *rest)


def test_strided_inputs_and_expanded_gradients():
    q, k, v, *rest = make([(4, 0), (7, 0)], 4, 4, 6, 6)
    fused = torch.stack([q, k, v], dim=2).detach().requires_grad_()
    kernel.attention_varlen(*fused.unbind(2), *rest).sum().backward()  # a gradient with stride 0
    wanted = torch.autograd.grad(reference.attention_varlen(q, k, v, *rest).sum(), (q, k, v))
    torch.testing.assert_close(fused.grad, torch.stack(wanted, dim=2))


@pytest.mark.parametrize(("short", "longest", "many"), [(100, 8, 4), (8, 100, 5)])
def test_the_longest_segments_are_left_to_tiles(monkeypatch, short, longest, many):
    """The other kernel runs as soon as one segment is longer; here two have two key/value heads each."""
    for name, value in (("SHORT", short), ("LONGEST", longest), ("MANY", many), ("_forward", None)):
        monkeypatch.setattr(kernel, name, value)
    call = make([(3, 0), (4, 5)])
    torch.testing.assert_close(kernel.attention_varlen(*call), reference.attention_varlen(*call))


@pytest.mark.parametrize(("short", "longest", "many"), [(8, 9, 4), (9, 8, 5)])
def test_long_segments_of_many_heads_are_not(monkeypatch, short, longest, many):
    for name, value in (("SHORT", short), ("LONGEST", longest), ("MANY", many)):
        monkeypatch.setattr(kernel, name, value)
    monkeypatch.setattr(kernel.tiled, "attention_varlen", None)
    call = make([(3, 0), (4, 5)])
    torch.testing.assert_close(kernel.attention_varlen(*call), reference.attention_varlen(*call))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_that_share_a_segment_change_no_bit(monkeypatch, dtype):
    """The first segment is cut in two."""
    call = [x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x for x in make([(1050, 0), (70, 40)])]
    found = []
    for threads in (1, 5, 16):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(kernel._forward(*call[:5], None, call[5]))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_a_thousand_keys_equal_the_tiles(dtype, tolerance):
    q, k, v, *rest = (x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x for x in make([(1100, 100)]))
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    outs = kernel.attention_varlen(*inputs, *rest), kernel.tiled.attention_varlen(*exact, *rest)
    grads = [torch.autograd.grad(out.sum(), given) for out, given in zip(outs, (inputs, exact), strict=True)]
    for got, wanted in zip((outs[0], *grads[0]), (outs[1], *grads[1]), strict=True):
        assert (got - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_after_the_last_segment_get_zeros(dtype):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 2, 16, generator=draw).to(dtype).requires_grad_() for rows in (9, 30, 30))
    out = kernel.attention_varlen(q, k, v, cumulative([4, 5]), cumulative([10, 12]), 0.25)
    stale = [torch.full_like(k, torch.nan).detach() for _ in range(8)]  # memory that the gradients may get
    del stale
    of_k, of_v = torch.autograd.grad(out.float().square().sum(), (k, v))
    assert not of_k[22:].any() and not of_v[22:].any() and of_k[:22].any() and of_v[:22].any()


def test_segments_beyond_the_rows_are_refused():
    q, k, v, cu_query, _, scale = make([(3, 0)])
    with pytest.raises(ValueError, match="3 tokens, 3 keys"):
        kernel.attention_varlen(q, k, v, cu_query, cumulative([4]), scale)


def test_sizes_that_do_not_fit_together_are_refused():
    q, k, v, *rest = make([(3, 0)], 4, 2, 6, 5)
    for call, message in (
        ((q, k[..., :4], v), r"k_SGK must be \[3, 2, 6\], not \[3, 2, 4\]"),
        ((q, k, v[:2]), r"v_SGV must be \[3, 2, 5\], not \[2, 2, 5\]"),
        ((q[:, :3], k, v), "3 heads cannot share 2 key/value heads"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel.attention_varlen(*call, *rest)
