"""Attention of few queries in C++: the reference's values for any heads, pages and lengths, whatever the threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.attention_decode as kernel
from arcforge_core.contracts.batch import Pages, cumulative
from arcforge_core.ops import reference


def make(queries, keys, heads=4, groups=2, width=20, value=12, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    q_THK = torch.randn(sum(queries), heads, width, generator=draw, dtype=dtype)
    k_SGK = torch.randn(sum(keys), groups, width, generator=draw, dtype=dtype)
    v_SGV = torch.randn(sum(keys), groups, value, generator=draw, dtype=dtype)
    return q_THK, k_SGK, v_SGV, cumulative(queries), cumulative(keys), width**-0.5


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 600)), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_equals_the_reference(segments, groups, per, width, value):
    lengths = [q for q, _ in segments], [q + past for q, past in segments]
    call = make(*lengths, groups * per, groups, width, value)
    torch.testing.assert_close(kernel.attention_decode(*call), reference.attention_decode(*call), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("size", [1, 4, 32, 48, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_of_any_size_are_read_where_they_lie(size, dtype):
    q_THK, k_SGK, v_SGV, cu_query, cu_key, scale = make([1, 3], [300, 70], dtype=dtype)
    lengths = [300, 70]
    counts = [-(-length // size) for length in lengths]
    numbers = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)).split(counts)
    pages = Pages(torch.nn.utils.rnn.pad_sequence(list(numbers), batch_first=True), size, sum(counts) * size)
    stores = []
    for x in (k_SGK, v_SGV):
        store = x.new_full((pages.rows, *x.shape[1:]), float("nan"))
        store[pages.key_rows(cu_key)] = x
        stores.append(store)
    got = kernel.attention_decode(q_THK, *stores, cu_query, cu_key, scale, pages)
    wanted = kernel.attention_decode(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)
    if size % 32 == 0:  # both split the keys into the same parts
        assert torch.equal(got, wanted)
    torch.testing.assert_close(got, wanted)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 600)), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([(20, 12), (32, 16), (64, 64), (96, 32)]),
)
def test_bfloat16_is_near_the_reference(segments, groups, per, sizes):
    """Keys that are widened, and keys in whole vectors that are multiplied as they are."""
    lengths = [q for q, _ in segments], [q + past for q, past in segments]
    call = make(*lengths, groups * per, groups, *sizes, dtype=torch.bfloat16)
    wanted = reference.attention_decode(*(x.double() for x in call[:3]), *call[3:])
    torch.testing.assert_close(kernel.attention_decode(*call).double(), wanted, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("size", [1, 16, 48])
def test_whole_vectors_of_bfloat16_are_the_same_bits_in_pages_of_any_size(size):
    call = make([1, 3], [300, 70], width=64, value=32, dtype=torch.bfloat16)
    wanted = kernel.attention_decode(*call)
    for order in (lambda count: torch.arange(count), lambda count: torch.arange(count).flip(0)):
        counts = [-(-length // size) for length in (300, 70)]
        numbers = order(sum(counts)).split(counts)
        pages = Pages(torch.nn.utils.rnn.pad_sequence(list(numbers), batch_first=True), size, sum(counts) * size)
        stores = [x.new_full((pages.rows, *x.shape[1:]), float("nan")) for x in call[1:3]]
        for store, x in zip(stores, call[1:3], strict=True):
            store[pages.key_rows(call[4])] = x
        assert torch.equal(kernel.attention_decode(call[0], *stores, *call[3:], pages), wanted)


@pytest.mark.parametrize("width", [20, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_is_the_same_whatever_else_is_decoded(dtype, width):
    """Also when threads take all groups of a chunk at a time, as with many sequences."""
    keys = [70 + 13 * n for n in range(20)]
    q, k, v, _, cu_key, scale = make([1] * 20, keys, width=width, value=32, dtype=dtype)
    whole = kernel.attention_decode(q, k, v, cumulative([1] * 20), cu_key, scale)
    for n, (rows_k, rows_v) in enumerate(zip(k.split(keys), v.split(keys), strict=True)):
        one = kernel.attention_decode(q[n : n + 1], rows_k, rows_v, cumulative([1]), cumulative([keys[n]]), scale)
        assert torch.equal(one[0], whole[n])


@pytest.mark.parametrize("width", [20, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit(dtype, width, monkeypatch):
    call, found = make([1, 9, 2], [700, 300, 2], width=width, dtype=dtype), []
    for threads in (1, 2, 5):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(kernel.attention_decode(*call))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_gradients_come_from_the_tiled_kernel():
    q, k, v, *rest = make([2, 1], [9, 4])
    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *x: kernel.attention_decode(*x, *rest), leaves)


def test_sizes_that_do_not_fit_are_refused():
    q, k, v, *rest = make([2], [9])
    for wrong in ((q[:, :3], k, v), (q, k[..., :-1], v), (q, k, v[:-1]), (q, k[:, :1], v), (q.float(), k, v)):
        with pytest.raises(ValueError, match=r"must be|evenly|one dtype"):
            kernel.attention_decode(*wrong, *rest)
