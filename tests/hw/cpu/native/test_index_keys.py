"""Index keys of 16 and 8 bits, scored by few queries as they are: within the bits that a query keeps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.batch import Pages, cumulative
from arcforge_core.ops import reference
from arcforge_core.ops.quant import from_records, to_records
from arcforge_core.ops.reference.indexer_topk import index_scores
from arcforge_hw.cpu.native import library
from arcforge_hw.cpu.native.indexer_topk import indexer_topk

pytestmark = pytest.mark.skipif(not library().verdict(), reason=library().reason or "")

KEPT = {"bf16": 2.0**-16, "int8": 1 / 16256}
"""Relative error of a query's largest value."""


def narrow(k_SD, form):
    """Returns the keys as a cache has them, and their values."""
    kept = k_SD.bfloat16() if form == "bf16" else to_records(k_SD)
    return kept, kept.float() if form == "bf16" else from_records(kept)


def in_pages(k_SD, size, draw):
    """Returns the keys in pages in any order, and the page table of a single segment."""
    count = -(-len(k_SD) // size)
    order = torch.randperm(count + 2, generator=draw)[:count]
    rows = torch.zeros((count + 2) * size, k_SD.shape[1], dtype=k_SD.dtype)
    for n, page in enumerate(order.tolist()):
        part = k_SD[n * size : (n + 1) * size]
        rows[page * size : page * size + len(part)] = part
    return rows, Pages(order[None], size, len(rows))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["bf16", "int8"]),
    st.integers(1, 8),
    st.one_of(st.integers(0, 700), st.just(3000)),
    st.integers(1, 9),
    st.sampled_from([4, 5, 16, 30, 32, 64, 72, 96, 128, 200]),
    st.booleans(),
    st.sampled_from([None, 1, 16, 64]),
    st.integers(0, 1 << 16),
)
def test_no_key_is_left_out_that_is_better_than_a_selected_one(form, queries, past, heads, width, relu, page, seed):
    draw = torch.Generator().manual_seed(seed)
    q_TID, w_TI = (torch.randn(queries, heads, *rest, generator=draw) for rest in ((width,), ()))
    kept_SD, k_SD = narrow(torch.randn(queries + past, width, generator=draw), form)
    rows, pages = (kept_SD, None) if page is None else in_pages(kept_SD, page, draw)
    topk = 24
    found_TK = indexer_topk(q_TID, rows, w_TI, cumulative([queries]), cumulative([len(k_SD)]), topk, relu, pages)
    scores_TS = index_scores(q_TID.double(), k_SD.double(), w_TI.double(), relu)
    largest_TI = q_TID.abs().amax(-1).double()
    error = float(((w_TI.double().abs() * largest_TI).sum(-1).max() * k_SD.double().abs().sum(-1).max()) * KEPT[form])
    for scores_S, keys_K, seen in zip(scores_TS, found_TK, range(past + 1, past + queries + 1), strict=True):
        selected = keys_K[keys_K >= 0]
        assert len(selected) == min(topk, seen) and selected.tolist() == sorted(set(selected.tolist()))
        left_S = scores_S[:seen].clone()
        left_S[selected] = -torch.inf
        assert left_S.max() <= scores_S[selected].min() + 2 * error + 1e-5


@pytest.mark.parametrize("page", [None, 16])
@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_small_integers_are_exact_with_all_ties(form, page):
    draw = torch.Generator().manual_seed(0)
    q_TID, w_TI = (torch.randint(-2, 3, (3, 5, *rest), generator=draw).float() for rest in ((64,), ()))
    k_SD = torch.randint(-2, 3, (900, 64), generator=draw).float()
    scale = torch.ones(len(k_SD), 1).view(torch.int8)
    kept_SD = k_SD.bfloat16() if form == "bf16" else torch.cat((k_SD.to(torch.int8), scale), -1)
    rows, pages = (kept_SD, None) if page is None else in_pages(kept_SD, page, draw)
    rest = w_TI, cumulative([3]), cumulative([900]), 40, True
    assert torch.equal(indexer_topk(q_TID, rows, *rest, pages), reference.indexer_topk(q_TID, k_SD, *rest))


@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_each_query_depends_on_itself_alone(form, monkeypatch):
    """In any number of threads, beside any others, whatever is not finite there."""
    draw = torch.Generator().manual_seed(0)
    q_TID, w_TI = torch.randn(4, 7, 64, generator=draw), torch.randn(4, 7, generator=draw)
    kept_SD, _ = narrow(torch.randn(700, 64, generator=draw), form)
    q_TID[1, 2, 3], q_TID[2, 0, 0] = torch.nan, torch.inf
    whole_TK = indexer_topk(q_TID, kept_SD, w_TI, cumulative([4]), cumulative([700]), 30)
    for threads in (1, 2, 5):
        monkeypatch.setattr("arcforge_hw.cpu.native.indexer_topk.torch.get_num_threads", lambda n=threads: n)
        again_TK = indexer_topk(q_TID, kept_SD, w_TI, cumulative([4]), cumulative([700]), 30)
        assert torch.equal(again_TK, whole_TK)
    alone = q_TID[3:], kept_SD, w_TI[3:], cumulative([1]), cumulative([700]), 30
    assert torch.equal(indexer_topk(*alone), whole_TK[3:])


@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_bits_of_a_query_decide_that_a_key_does_not_have(form):
    q_TID = torch.tensor([[[1.0, 1.0 + 2.0**-10]]]).repeat_interleave(32, -1)
    kept_SD, _ = narrow(torch.eye(2).repeat_interleave(32, -1), form)
    rest = torch.ones(1, 1), cumulative([1]), cumulative([2]), 1
    assert indexer_topk(q_TID, kept_SD, *rest).item() == 1


def test_sums_of_more_bytes_than_32_bits_hold_are_of_fp32():
    q_TID, k_SD = torch.ones(1, 1, 2048), torch.ones(40, 2048)
    k_SD[:20] = -1.0
    found = indexer_topk(q_TID, to_records(k_SD), torch.ones(1, 1), cumulative([1]), cumulative([40]), 20, False)
    assert found.tolist() == [list(range(20, 40))]


def test_an_infinite_value_of_a_query_is_infinite():
    q_TID, k_SD = torch.ones(1, 1, 64), torch.ones(3, 64, dtype=torch.bfloat16)
    q_TID[0, 0, 5], k_SD[:2, 5] = torch.inf, -1.0
    assert indexer_topk(q_TID, k_SD, torch.ones(1, 1), cumulative([1]), cumulative([3]), 1).item() == 2
