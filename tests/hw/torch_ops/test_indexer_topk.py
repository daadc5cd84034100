"""Selection a block at a time: the reference's keys, ties included, in any block."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.indexer_topk as native
import arcforge_hw.torch_ops.indexer_topk as blocks
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_hw.cpu.native import library


@pytest.fixture(params=[blocks, native], ids=["blocks", "native"])
def kernel(request):
    if request.param is native and not library().verdict():
        pytest.skip(library().reason)
    return request.param


def make(queries, keys, seed=0, heads=2):
    """Small integers: scores are exact, ties and zeros are everywhere."""
    generator = torch.Generator().manual_seed(seed)
    q_TID, k_SD = (
        torch.randint(-2, 3, (n, *s), generator=generator) for n, s in ((sum(queries), (heads, 4)), (sum(keys), (4,)))
    )
    w_TI = torch.randint(-2, 3, (sum(queries), heads), generator=generator)
    return q_TID.float(), k_SD.float(), w_TI.float(), cumulative(queries), cumulative(keys)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=3),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from([1, 64, 1 << 20]),
    st.integers(0, 5),
)
def test_equals_the_reference(kernel, segments, topk, use_relu, block, seed):
    queries, keys = [q for q, _ in segments], [q + past for q, past in segments]
    args = (*make(queries, keys, seed), topk, use_relu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "SCORES", block)  # the other kernel's blocks are fixed
        assert torch.equal(kernel.indexer_topk(*args), reference.indexer_topk(*args))


def test_all_scores_equal_takes_the_first_keys(kernel):
    q, k, w, cu_query, cu_key = make([9], [9])
    selected_TK = kernel.indexer_topk(q, k, torch.zeros_like(w), cu_query, cu_key, 3)
    assert selected_TK[8].tolist() == [0, 1, 2] and selected_TK[1].tolist() == [0, 1, -1]


def test_negative_zero_is_zero(kernel):
    """Products of the keys with the query are 0, -1 and 0 again, and the weight makes -0 of the second kind of 0."""
    k_SD = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-0.0, -1.0], [0.0, 1.0]])
    q_TID, w_TI = torch.tensor([[[-1.0, 0.0]]]), torch.ones(1, 1)
    selected_TK = kernel.indexer_topk(q_TID, k_SD, w_TI, cumulative([1]), cumulative([4]), 2, use_relu=False)
    assert selected_TK.tolist() == [[0, 2]]


@pytest.mark.parametrize("topk", [3, 100])
@pytest.mark.parametrize(("queries", "heads"), [(7, 2), (20, 2), (20, 7)])
def test_random_scores_of_every_sign_and_size(kernel, topk, queries, heads):
    """Boundaries fall into bins of many scores and of one, and below zero."""
    draw = torch.Generator().manual_seed(0)
    q_TID, k_SD = torch.randn(queries, heads, 4, generator=draw), torch.randn(3000, 4, generator=draw)
    w_TI = torch.randn(queries, heads, generator=draw)
    sizes = cumulative([queries]), cumulative([3000])
    for use_relu in (False, True):
        got = kernel.indexer_topk(q_TID, k_SD, w_TI, *sizes, topk, use_relu)
        scores_TS = reference.index_scores(q_TID, k_SD, w_TI, use_relu).double()
        mask_TS = reference.causal_mask(queries, 3000, k_SD.device)
        wanted = reference.top_keys(scores_TS, mask_TS, topk)
        difference = scores_TS.gather(1, got).sort(1).values - scores_TS.gather(1, wanted).sort(1).values
        assert difference.abs().max() < 1e-5  # sums in another order may swap near-equal scores, nothing else
        assert (got.diff() > 0).all()


@pytest.mark.parametrize("package", ["arcforge_torch", "arcforge_native"])
def test_opcheck(package):
    if package == "arcforge_native" and not library().verdict():
        pytest.skip(library().reason)
    op = getattr(torch.ops, package).indexer_topk.default
    torch.library.opcheck(op, (*make([5, 3], [9, 3]), 4, True))


def test_the_same_on_every_run_and_in_any_number_of_threads(kernel, monkeypatch):
    args = (*make([200], [600], heads=1), 16)
    first = kernel.indexer_topk(*args)
    for threads in (1, 2, 5):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        assert torch.equal(first, kernel.indexer_topk(*args))


@pytest.mark.parametrize("queries", [1, 3, 40])
def test_keys_in_bf16_are_scored_in_float32(kernel, queries):
    draw = torch.Generator().manual_seed(0)
    q_TID, w_TI = torch.randn(queries, 4, 24, generator=draw), torch.randn(queries, 4, generator=draw)
    k_SD = torch.randn(300, 24, generator=draw).bfloat16()
    rest = w_TI, cumulative([queries]), cumulative([300]), 16
    assert torch.equal(kernel.indexer_topk(q_TID, k_SD, *rest), reference.indexer_topk(q_TID, k_SD.float(), *rest))


def test_few_queries_in_any_number_of_threads(monkeypatch):
    if not library().verdict():
        pytest.skip(library().reason)
    args = (*make([3], [500], heads=4), 20)
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(native.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(native.indexer_topk(*args))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("queries", [2, 30])
def test_ties_among_thousands_of_keys(kernel, queries):
    args = (*make([queries], [5000], heads=3), 70)
    assert torch.equal(kernel.indexer_topk(*args), reference.indexer_topk(*args))


@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("high", [0, 1])
def test_scores_that_a_sample_of_every_fourth_key_misjudges(kernel, queries, high):
    """Every fourth key is much better, or much worse, than what lies between."""
    keys, topk = 2048 + queries, 600
    k_SD = torch.linspace(0, 1, keys)[:, None] + 0.0
    k_SD[::4] += 100.0 if high else -100.0
    q_TID, w_TI = torch.ones(queries, 1, 1), torch.ones(queries, 1)
    args = q_TID, k_SD, w_TI, cumulative([queries]), cumulative([keys]), topk, False
    assert torch.equal(kernel.indexer_topk(*args), reference.indexer_topk(*args))


@pytest.mark.parametrize("queries", [2, 20])
def test_sizes_that_do_not_fit_together_are_refused(queries):
    if not library().verdict():
        pytest.skip(library().reason)
    q, k, w, cu_query, cu_key = make([queries], [30])
    for call, message in (
        ((q, k[:, :3], w, cu_query, cu_key), "k_SD must be"),
        ((q, k, w[:, :1], cu_query, cu_key), "w_TI must be"),
        ((q, k[:9], w, cu_query, cu_key), "no segment has fewer keys"),
        ((q, k, w, cu_query, cumulative([1])), "no segment has fewer keys"),
    ):
        with pytest.raises(ValueError, match=message):
            native.indexer_topk(*call, 4)
