"""Attention to selected keys in C++: the reference's values and gradients, in any number of threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.sparse_mla as kernel
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.torch_ops.sparse_mla import key_rows


def results(fn, q_THC, kv_SC, *rest):
    leaves = q_THC.detach().requires_grad_(), kv_SC.detach().requires_grad_()
    out = fn(*leaves, *rest)
    return out.detach(), *torch.autograd.grad(out, leaves, torch.linspace(-1, 1, out.numel()).to(out).view_as(out))


def make(queries, keys, heads, width, latent, topk, dtype=torch.float64, seed=0):
    """A random call: each query sees some of its keys, and none twice."""
    draw = torch.Generator().manual_seed(seed)
    q_THC = torch.randn(sum(queries), heads, width, generator=draw, dtype=dtype)
    kv_SC = torch.randn(sum(keys), width, generator=draw, dtype=dtype)
    rows = []
    for query, key in zip(queries, keys, strict=True):
        for visible in range(key - query + 1, key + 1):
            count = int(torch.randint(1, min(visible, topk) + 1, (), generator=draw))
            row = torch.full((topk,), -1)
            row[:count] = torch.randperm(visible, generator=draw)[:count].sort().values
            rows.append(row)
    return q_THC, kv_SC, torch.stack(rows), cumulative(queries), cumulative(keys), latent, width**-0.5


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 70)), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(2, 40),
    st.integers(1, 40),
    st.data(),
)
def test_equals_the_reference(segments, heads, width, topk, data):
    """Sizes that are no whole vectors, tiles with heads and keys left over, pasts, missing keys."""
    latent = data.draw(st.integers(1, width))
    call = make([q for q, _ in segments], [q + past for q, past in segments], heads, width, latent, topk)
    for got, wanted in zip(results(kernel.sparse_mla, *call), results(reference.sparse_mla, *call), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("queries", [[70, 3], [1, 1], [1]], ids=str)  # of few queries threads share keys and heads
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit(dtype, queries, monkeypatch):
    call = make(queries, [150, 90][: len(queries)], 6, 48, 40, 80, dtype, seed=1)
    assert (call[2] >= 0).sum(-1).max() > 32, "several blocks of keys"
    found = []
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(results(kernel.sparse_mla, *call))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_values_of_keys_that_were_not_selected_are_never_read():
    call = make([5], [60], 3, 24, 16, 4, torch.float32)
    q_THC, kv_SC, indices_TK, *rest = call
    poisoned = torch.full_like(kv_SC, float("nan"))
    used = indices_TK[indices_TK >= 0].unique()
    poisoned[used] = kv_SC[used]
    for got, wanted in zip(
        results(kernel.sparse_mla, q_THC, poisoned, indices_TK, *rest), results(kernel.sparse_mla, *call), strict=True
    ):
        assert torch.equal(got, wanted)


def test_missing_keys_may_stand_anywhere():
    q_THC, kv_SC, indices_TK, *rest = make([7], [9], 3, 12, 8, 6)
    rolled_TK = indices_TK.roll(1, 1)
    assert (rolled_TK[:, 0] == -1).any() and (rolled_TK[:, -1] >= 0).any()
    call = q_THC, kv_SC, rolled_TK, *rest
    for got, wanted in zip(results(kernel.sparse_mla, *call), results(reference.sparse_mla, *call), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_selections_may_lie_anyhow_in_memory():
    q_THC, kv_SC, indices_TK, *rest = make([6], [20], 2, 8, 8, 5)
    turned_TK = indices_TK.mT.contiguous().mT
    for got, wanted in zip(
        results(kernel.sparse_mla, q_THC, kv_SC, turned_TK, *rest),
        results(kernel.sparse_mla, q_THC, kv_SC, indices_TK, *rest),
        strict=True,
    ):
        assert torch.equal(got, wanted)


def test_what_would_be_read_outside_of_the_keys_is_refused():
    q_THC, kv_SC, indices_TK, *rest = make([3], [9], 2, 8, 8, 4)
    with pytest.raises(IndexError, match="key 9: must be below 9"):
        kernel.sparse_mla(q_THC, kv_SC, torch.full_like(indices_TK, 9), *rest)
    with pytest.raises(ValueError, match="one dtype"):
        kernel.sparse_mla(q_THC, kv_SC.float(), indices_TK, *rest)
    with pytest.raises(ValueError, match=r"int64, not torch\.int32"):  # C would read twice as far
        kernel.sparse_mla(q_THC, kv_SC, indices_TK.int(), *rest)


def test_keys_that_nobody_selected_get_no_gradient():
    call = make([2], [40], 2, 8, 8, 3)
    dkv_SC = results(kernel.sparse_mla, *call)[2]
    unused = torch.ones(40, dtype=torch.bool)
    unused[call[2][call[2] >= 0]] = False
    assert (dkv_SC[unused] == 0).all() and (dkv_SC[~unused] != 0).any(1).all()


def test_scores_that_differ_by_thousands():
    q_THC, kv_SC, *rest = make([6], [30], 2, 16, 16, 8, torch.float32)
    call = (300 * q_THC, 30 * kv_SC, *rest)
    exact = (call[0].double(), call[1].double(), *rest)
    for got, wanted in zip(results(kernel.sparse_mla, *call), results(reference.sparse_mla, *exact), strict=True):
        assert (got - wanted).abs().max() <= 1e-4 * wanted.abs().max() + 1e-30


def test_gradcheck():
    q_THC, kv_SC, *rest = make([3, 2], [9, 4], 3, 10, 7, 4)
    leaves = q_THC.requires_grad_(), kv_SC.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, kv: kernel.sparse_mla(q, kv, *rest), leaves)


def test_opcheck():
    args = op_cases("sparse_mla")[1].inputs(torch.float64, "cpu")
    rows_TK = key_rows(args["indices_TK"], args["cu_query"], args["cu_key"])
    inputs = args["q_THC"].requires_grad_(), args["kv_SC"].requires_grad_(), rows_TK, 24, 0.3
    torch.library.opcheck(torch.ops.arcforge_native.sparse_mla.default, inputs)


def test_sizes_that_do_not_fit_together_are_refused():
    q_THC, kv_SC, indices_TK, cu_query, cu_key, latent, scale = make([3], [9], 2, 8, 8, 4)
    with pytest.raises(ValueError, match=r"kv_SC must be \[9, 8\], not \[9, 7\]"):
        kernel.sparse_mla(q_THC, kv_SC[:, :7], indices_TK, cu_query, cu_key, 7, scale)
    with pytest.raises(ValueError, match=r"indices_TK must be \[3, 4\], not \[2, 4\]"):
        kernel.sparse_mla(q_THC, kv_SC, indices_TK[:2], cu_query, cu_key, latent, scale)
    with pytest.raises(ValueError, match="latent_dim=9: must be from 1 to 8"):
        kernel.sparse_mla(q_THC, kv_SC, indices_TK, cu_query, cu_key, 9, scale)
