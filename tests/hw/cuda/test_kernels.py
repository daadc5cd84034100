"""Triton kernels against the float64 references, on a GPU or in the interpreter."""

from itertools import pairwise

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_core.testing.attention_inputs import selection
from arcforge_core.testing.hardware_checks import check_kernel, relative_error
from arcforge_core.testing.op_case import OpCase
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.cuda.backend import triton_kernels
from arcforge_hw.cuda.indexer_topk import indexer_topk
from arcforge_hw.cuda.launch import check, power_of_two
from arcforge_hw.cuda.mla_decode import mla_decode
from arcforge_hw.cuda.rows import rms_norm
from arcforge_hw.cuda.sparse_mla import pairs_by_key, sparse_mla
from support.marks import nightly_case

KERNELS = {kernel.op: kernel for kernel in triton_kernels() if kernel.op != "newton_schulz"}
"""That one declines matrices as small as the suite's: test_newton_schulz.py."""
MANY_PROGRAMS = {"sparse_mla", "mla_decode", "indexer_kl", "linear_cross_entropy"}
"""A program per query and part, or per token: the interpreter takes minutes for all cases."""


# the interpreter's NumPy warns where a sigmoid of a large number reaches 0
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.parametrize("op", sorted(KERNELS.keys() - MANY_PROGRAMS))
@pytest.mark.parametrize("sizes", ["cut", nightly_case("whole")])
def test_equals_the_reference(op, sizes, device, monkeypatch):
    """Every case of the conformance suite, forward and gradients, strided inputs, twice the same bits.

    The interpreter takes a minute for the 5,003 rows and 40,009 keys of the large cases: they are cut but at night.
    """
    if sizes == "cut" and device != "cuda":
        for name, size in (("ROWS", 67), ("KEYS", 67), ("FAR", 1_003)):
            monkeypatch.setattr(f"arcforge_core.testing.large_inputs.{name}", size)
    result = check_kernel(KERNELS[op], device, torch.float32)
    assert result.verdict == "pass", result.reason


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("op", sorted(KERNELS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_reference_on_a_gpu(op, dtype):
    result = check_kernel(KERNELS[op], "cuda", dtype)
    assert result.verdict == "pass", result.reason


@pytest.mark.parametrize("op", ["mla_decode", "sparse_mla"])
@pytest.mark.parametrize(("queries", "keys"), [([1], [1]), ([3, 1, 2], [5, 1, 9])], ids=["one token", "ragged"])
def test_a_few_queries_equal_the_reference(op, queries, keys, device, monkeypatch):
    """Forward and gradients, strided inputs, twice the same bits; tiles with keys left over, heads of two programs."""
    monkeypatch.setattr("arcforge_hw.cuda.mla_decode.PART", 32)
    draw, heads = torch.Generator().manual_seed(0), 18
    args = {"q_THC": torch.randn(sum(queries), heads, 28, generator=draw, dtype=torch.float64)}
    args["kv_SC"] = torch.randn(sum(keys), 28, generator=draw, dtype=torch.float64)
    if op == "sparse_mla":
        args["indices_TK"] = selection(draw, queries, keys, topk=4)
    args |= {"cu_query": cumulative(queries), "cu_key": cumulative(keys), "latent_dim": 20, "scale": 0.2}
    case = OpCase(op, "few", args, ("q_THC", "kv_SC"))
    for with_grad in (False, True):
        assert relative_error(KERNELS[op].fn, case, device, torch.float32, with_grad, strided=with_grad) < 2e-5


def test_no_kernel_runs_in_bf16_where_the_interpreter_is_wrong(device):
    if device == "cuda":
        pytest.skip("a GPU computes it rightly")
    for op, kernel in KERNELS.items():
        assert check_kernel(kernel, device, torch.bfloat16).verdict == "declined", op
    with pytest.raises(ValueError, match=r"incorrect in torch\.bfloat16"):
        check(torch.zeros(2, dtype=torch.bfloat16))


def test_values_of_keys_that_were_not_selected_are_never_read(device):
    args = op_cases("sparse_mla")[0].inputs(torch.float32, device)
    args["kv_SC"] = torch.cat((args["kv_SC"], torch.zeros(3, 32, device=device)))
    wanted = sparse_mla(*args.values())
    starts_T = args["cu_key"][:-1].long().repeat_interleave(args["cu_query"].diff()).to(device)
    indices_TK = args["indices_TK"]
    used = (indices_TK + starts_T[:, None])[indices_TK >= 0].unique()
    poisoned = torch.full_like(args["kv_SC"], float("nan"))
    poisoned[used] = args["kv_SC"][used]
    assert torch.equal(sparse_mla(*{**args, "kv_SC": poisoned}.values()), wanted)


def test_a_cache_longer_than_a_part_is_joined(device):
    draw = torch.Generator().manual_seed(0)
    q_THC, kv_SC = torch.randn(2, 2, 24, generator=draw).to(device), torch.randn(700, 24, generator=draw).to(device)
    rest = cumulative([1, 1]), cumulative([600, 100]), 16, 0.2
    with torch.no_grad():
        got = mla_decode(q_THC, kv_SC, *rest)
    torch.testing.assert_close(got, reference.mla_decode(q_THC, kv_SC, *rest), rtol=1e-4, atol=1e-5)


def test_scores_in_blocks_of_queries_select_the_same(device, monkeypatch):
    args = op_cases("indexer_topk")[1].inputs(torch.float32, device)
    wanted = indexer_topk(*args.values())
    monkeypatch.setattr("arcforge_hw.cuda.indexer_topk.SCORES", 40)
    assert torch.equal(indexer_topk(*args.values()), wanted)


def test_pairs_come_key_by_key_and_in_the_order_of_queries():
    rows_TK = torch.tensor([[2, 0, -1], [0, 2, 3], [-1, -1, 0]])
    pairs_P, starts_S = pairs_by_key(rows_TK, 5)
    lists = [(pairs_P // 3)[a:b].tolist() for a, b in pairwise(starts_S.tolist())]
    assert lists == [[0, 1, 2], [], [0, 1], [1], []]


def test_pairs_are_sorted_without_waiting_for_a_device():
    with FakeTensorMode():  # which has no values to wait for
        assert pairs_by_key(torch.zeros(3, 4, dtype=torch.int64), 5)[1].shape == (6,)


def test_rows_without_any(device):
    weight = torch.ones(8, device=device)
    assert rms_norm(torch.zeros(0, 8, device=device), weight, 1e-6).shape == (0, 8)


@pytest.mark.parametrize(("n", "least", "wanted"), [(1, 1, 1), (5, 1, 8), (8, 1, 8), (3, 16, 16), (0, 1, 1)])
def test_powers_of_two(n, least, wanted):
    assert power_of_two(n, least) == wanted
