"""Selection a block at a time: the reference's keys, ties included, in any block."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.indexer_topk as kernel
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference


def make(queries, keys, seed=0, heads=2):
    """Small integers: scores are exact, ties and zeros are everywhere."""
    generator = torch.Generator().manual_seed(seed)
    q_TID, k_SD = (
        torch.randint(-2, 3, (n, *s), generator=generator) for n, s in ((sum(queries), (heads, 4)), (sum(keys), (4,)))
    )
    w_TI = torch.randint(-2, 3, (sum(queries), heads), generator=generator)
    return q_TID.float(), k_SD.float(), w_TI.float(), cumulative(queries), cumulative(keys)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=3),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from([1, 64, 1 << 20]),
    st.integers(0, 5),
)
def test_equals_the_reference(segments, topk, use_relu, block, seed):
    queries, keys = [q for q, _ in segments], [q + past for q, past in segments]
    args = (*make(queries, keys, seed), topk, use_relu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "SCORES", block)
        assert torch.equal(kernel.indexer_topk(*args), reference.indexer_topk(*args))


def test_all_scores_equal_takes_the_first_keys():
    q, k, w, cu_query, cu_key = make([9], [9])
    selected_TK = kernel.indexer_topk(q, k, torch.zeros_like(w), cu_query, cu_key, 3)
    assert selected_TK[8].tolist() == [0, 1, 2] and selected_TK[1].tolist() == [0, 1, -1]


def test_negative_zero_is_zero():
    scores_BN = torch.tensor([[-0.0, 0.0, -1.0, 0.0, -0.0]])
    assert kernel.best_keys(scores_BN, 2).tolist() == [[0, 1]]


def test_opcheck():
    torch.library.opcheck(torch.ops.arcforge_cpu.indexer_topk.default, (*make([5, 3], [9, 3]), 4, True))


def test_the_same_on_every_run():
    args = (*make([200], [600], heads=1), 16)
    first = kernel.indexer_topk(*args)
    assert all(torch.equal(first, kernel.indexer_topk(*args)) for _ in range(5))
