"""The unstable selection: valid for every draw, and redrawn in each call."""

import itertools
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from arcforge_core.contracts.batch import cumulative
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.quant import wide_rows
from arcforge_core.ops.specs import SPECS
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.attention_inputs import indexer_topk_cases
from arcforge_core.testing.op_case import OpCase
from support.unstable_selection import UnstableSelection, rounded, shuffled_ranks


def decoded(case: OpCase) -> OpCase:
    """Returns the last token of each segment: what a step of decoding asks."""
    cu_query = case.args["cu_query"]
    last, args = cu_query[1:].long() - 1, case.args
    taken = {"q_TID": args["q_TID"][last], "w_TI": args["w_TI"][last], "cu_query": cumulative([1] * len(last))}
    return replace(case, name=f"{case.name}, decoded", args={**args, **taken})


CASES = indexer_topk_cases(torch.Generator().manual_seed(0))
CASES += [decoded(case) for case in CASES]


def select(ops: UnstableSelection, case: OpCase) -> Tensor:
    call = OpCall("indexer_topk", "cpu", torch.float32, False, case.sizes)
    selected: Tensor = ops.bind(call)(*case.args.values())
    return selected


def scores_of(case: OpCase, selected_TK: Tensor) -> Tensor:
    """Returns the scores of the selected keys, highest first; those of none are nan."""
    args = case.args
    k_SD = wide_rows(reference.laid_out(args["k_SD"], args["cu_key"], args.get("pages")))
    found = []
    for rows_q, rows_k in reference.segments(args["cu_query"], args["cu_key"]):
        scores = reference.index_scores(args["q_TID"][rows_q], k_SD[rows_k], args["w_TI"][rows_q], args["use_relu"])
        index = selected_TK[rows_q]
        chosen = scores.gather(1, index.clamp(min=0)).masked_fill(index < 0, float("nan"))
        found.append(chosen.sort(-1, descending=True).values)
    return torch.cat(found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exact_ties_alone_are_drawn(case: OpCase) -> None:
    ops = UnstableSelection(None, False, bits=24)
    stable_TK = reference.indexer_topk(*case.args.values())
    wanted = scores_of(case, stable_TK)
    for _ in range(5):
        selected_TK = select(ops, case)
        assert torch.equal(scores_of(case, selected_TK).nan_to_num(-99), wanted.nan_to_num(-99))
        assert torch.equal((selected_TK < 0), (stable_TK < 0))  # as many, and -1 at the end
        for row in selected_TK.tolist():
            kept = [key for key in row if key >= 0]
            assert kept == sorted(set(kept))


def test_calls_differ_and_a_seed_restarts_them() -> None:
    ops = UnstableSelection(None, False, bits=24)
    case = next(case for case in CASES if case.name == "across tiles")
    rounds = []
    for seed in ("0/1", "0/1", "0/2"):
        ops.reseed(seed)
        rounds.append([select(ops, case) for _ in range(4)])
    assert not all(torch.equal(one, other) for one, other in itertools.pairwise(rounds[0]))
    assert all(torch.equal(one, other) for one, other in zip(rounds[0], rounds[1], strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(rounds[0], rounds[2], strict=True))


SIZES = st.floats(2.0**-80, 2.0**80, width=32)


@given(st.lists(SIZES | SIZES.map(lambda size: -size) | st.just(0.0), min_size=1, max_size=20), st.integers(1, 24))
def test_rounding_keeps_order_and_is_near(values: list[float], bits: int) -> None:
    scores = torch.tensor([sorted(values)])
    found = rounded(scores, bits)
    assert (found.diff() >= 0).all()
    assert ((found - scores).abs() <= scores.abs() * 2.0**-bits).all()
    if bits == 24:
        assert torch.equal(found, scores)
    if bits == 8:
        assert torch.equal(found, scores.bfloat16().float())


@settings(max_examples=50)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_ranks_are_those_of_scores(values: list[int]) -> None:
    scores_TS = torch.tensor([values], dtype=torch.float32)
    ranks_TS = shuffled_ranks(scores_TS, torch.Generator())
    assert sorted(ranks_TS[0].tolist()) == list(range(len(values)))
    assert (scores_TS.gather(1, ranks_TS.argsort(-1)).diff() >= 0).all()


def test_each_of_the_equals_is_chosen_as_often() -> None:
    scores_TS = torch.tensor([[5.0, 1.0, 1.0, 1.0, 1.0, 0.0]]).repeat(4000, 1)
    ranks_TS = shuffled_ranks(scores_TS, torch.Generator().manual_seed(0))
    chosen = reference.top_keys(ranks_TS, torch.ones_like(ranks_TS, dtype=torch.bool), 3)
    share = torch.bincount(chosen.flatten(), minlength=6) / len(scores_TS)
    assert share[0] == 1 and share[5] == 0
    assert share[1:5].tolist() == pytest.approx([0.5] * 4, abs=0.04)  # five standard deviations


def test_near_ties_are_drawn_where_bits_are_few() -> None:
    scores_TS = torch.tensor([[1.0, 1.001, 1.002, 0.5]])
    chosen = {bits: set() for bits in (8, 24)}
    generator = torch.Generator().manual_seed(0)
    for bits, _ in itertools.product(chosen, range(30)):
        chosen[bits].add(int(shuffled_ranks(rounded(scores_TS, bits), generator).argmax()))
    assert chosen == {8: {0, 1, 2}, 24: {2}}


def test_other_ops_are_the_backend_s() -> None:
    ops = UnstableSelection(None, False, bits=8)
    assert ops.bind(OpCall("rms_norm", "cpu", torch.float32, False, {"width": 8})) is SPECS["rms_norm"].reference
    assert ops.recorder is None


def test_its_steps_are_not_recorded_where_the_backend_s_are() -> None:
    pytest.importorskip("arcforge_hw")
    component = registry().get("hardware", "cpu")
    hardware = component.load()(component.load_schema()())
    if Ops(hardware, False).recorder is None:
        pytest.skip("no kernels here")
    assert UnstableSelection(hardware, False, bits=8).recorder is None
