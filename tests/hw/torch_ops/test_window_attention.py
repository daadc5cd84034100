"""Blocked windows against the naive reference: gradients, ragged segments, any window, memory that does not square."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.torch_ops.window_attention as kernel
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference


def make(queries, keys, window, heads=4, groups=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(keys))
    sizes = (sum(queries), heads, 6), (sum(keys), groups, 6), (sum(keys), groups, 5)
    q, k, v = (torch.randn(size, generator=generator, dtype=dtype).requires_grad_() for size in sizes)
    return q, k, v, cumulative(queries), cumulative(keys), window, 0.4


def results(fn, args):
    out = fn(*args)
    return out, *torch.autograd.grad(out.square().sum(), args[:3])


def assert_equal_to_reference(args, tolerance=1e-10):
    ours, naive = results(kernel.window_attention, args), results(reference.window_attention, args)
    for got, wanted in zip(ours, naive, strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), min_size=1, max_size=4),
    st.integers(1, 50),
    st.booleans(),
)
def test_equals_the_reference(segments, window, trimmed):
    queries = [query for query, _ in segments]
    keys = [query + (min(past, window - 1) if trimmed else past) for query, past in segments]
    assert_equal_to_reference(make(queries, keys, window))


def test_several_blocks_of_a_segment():
    assert_equal_to_reference(make([300, 1, 129], [300, 50, 200], 150))
    assert_equal_to_reference(make([300, 1, 129], [300, 50, 200], 7))


def test_whole_pasts_and_their_ends_give_the_same():
    q, k, v, cu_query, cu_key, window, scale = make([3, 2], [20, 9], 4)
    ends = torch.cat([torch.arange(14, 20), torch.arange(24, 29)])
    whole = kernel.window_attention(q, k, v, cu_query, cu_key, window, scale)
    short = kernel.window_attention(q, k[ends], v[ends], cu_query, cumulative([6, 5]), window, scale)
    torch.testing.assert_close(whole, short)


def test_gradcheck():
    args = make([3, 1, 6], [3, 4, 9], 3, heads=2, groups=1)
    assert torch.autograd.gradcheck(lambda q, k, v: kernel.window_attention(q, k, v, *args[3:]), args[:3])


def test_bfloat16_softmax_is_wide():
    args = make([70], [70], 20, dtype=torch.bfloat16)
    out = kernel.window_attention(*args)
    exact = reference.window_attention(*(x.double() for x in args[:3]), *args[3:])
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), exact, rtol=3e-2, atol=3e-2)


def test_work_grows_with_the_tokens():
    scores = [
        kernel.lay_blocks(cumulative([n]), cumulative([n]), 16, torch.device("cpu")).hidden_NBJ.numel()
        for n in (1024, 2048)
    ]
    assert scores[1] == 2 * scores[0] < 2048 * 64
