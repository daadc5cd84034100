"""The indexer's loss over selected keys, in C++ and a block at a time: the reference's values and gradients."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.indexer_kl as native
import arcforge_hw.torch_ops.indexer_kl as blocks
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_core.testing.attention_inputs import selection
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.cpu.native import library


@pytest.fixture(params=[blocks, native], ids=["blocks", "native"])
def kernel(request):
    if request.param is native and not library().verdict():
        pytest.skip(library().reason)
    return request.param


def make(queries, keys, heads=2, width=9, index_heads=3, index_width=5, topk=4, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=dtype)

    tokens, total = sum(queries), sum(keys)
    leaves = normal(tokens, index_heads, index_width), normal(total, index_width), normal(tokens, index_heads)
    rest = selection(draw, queries, keys, topk), cumulative(queries), cumulative(keys), width**-0.5
    return (normal(tokens, heads, width), normal(total, width)), leaves, rest


def results(fn, attention, leaves, rest, use_relu=True):
    leaves = [x.detach().requires_grad_() for x in leaves]
    loss = fn(*attention, *leaves, *rest, use_relu)
    return loss.detach(), *torch.autograd.grad(1.5 * loss, leaves)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=3),
    st.integers(1, 6), st.integers(1, 20), st.integers(1, 6), st.integers(1, 20), st.integers(1, 20),
    st.sampled_from([1, 200, 1 << 20]), st.booleans(),
)  # fmt: skip
def test_equals_the_reference(kernel, segments, heads, width, index_heads, index_width, topk, block, use_relu):
    queries, keys = [q for q, _ in segments], [q + past for q, past in segments]
    call = make(queries, keys, heads, width, index_heads, index_width, topk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "SCORES", block)
        got = results(kernel.indexer_kl, *call, use_relu)
    for value, wanted in zip(got, results(reference.indexer_kl, *call, use_relu), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-11)


def test_gradcheck(kernel):
    attention, leaves, rest = make([3, 2], [9, 4])
    leaves = [x.requires_grad_() for x in leaves]
    assert torch.autograd.gradcheck(lambda *x: kernel.indexer_kl(*attention, *x, *rest), leaves)


def test_attention_gets_no_gradient(kernel):
    attention, leaves, rest = make([3], [7])
    attention = [x.requires_grad_() for x in attention]
    loss = kernel.indexer_kl(*attention, *[x.requires_grad_() for x in leaves], *rest)
    assert torch.autograd.grad(loss, attention, allow_unused=True) == (None, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit(kernel, dtype, monkeypatch):
    attention, leaves, rest = make([40, 3], [90, 50], topk=16, dtype=dtype)
    call = attention, (*leaves[:2], leaves[2].float()), rest
    found = []
    for threads in (1, 2, 5) if kernel is native else (1, 1):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(results(kernel.indexer_kl, *call))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_blocks_keep_nothing_that_grows_with_the_selection():
    attention, leaves, rest = make([30], [60], topk=20)
    leaves = [x.requires_grad_() for x in leaves]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        blocks.indexer_kl(*attention, *leaves, *rest)
    assert sum(kept) <= sum(x.numel() for x in (*attention, *leaves, rest[0]))


def test_opcheck():
    if not library().verdict():
        pytest.skip(library().reason)
    args = op_cases("indexer_kl")[2].inputs(torch.float64, "cpu")
    rows_TK = native.key_rows(args["indices_TK"], args["cu_query"], args["cu_key"])
    leaves = [args[name].requires_grad_() for name in ("q_TID", "k_SD", "w_TI")]
    inputs = args["q_THC"], args["kv_SC"], *leaves, rows_TK, 0.3, True
    torch.library.opcheck(torch.ops.arcforge_native.indexer_kl.default, inputs)
