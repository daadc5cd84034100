"""The batch-invariant ops against the references, and row by row against themselves."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import invariant
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.op_inputs import op_cases

CASES = [pytest.param(case, id=f"{op}, {case.name}") for op in invariant.OPS for case in op_cases(op)]


def randn(*size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_every_invariant_op_is_an_op():
    assert invariant.OPS.keys() <= SPECS.keys()


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference_in_float64_with_gradients(case):
    results = []
    for op in (invariant.OPS[case.op], SPECS[case.op].reference):
        arguments = case.inputs(torch.float64, "cpu")
        inputs = [arguments[name].requires_grad_() for name in case.grad]
        out = op(**arguments)
        outs = out if isinstance(out, tuple) else (out,)
        loss = sum(out.square().sum() for out in outs)
        results.append((*outs, *(torch.autograd.grad(loss, inputs) if inputs else ())))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def row_wise_ops():
    """Yields (name, a function of rows, rows of input) with widths that are no multiple of a vector."""
    weight, heads = randn(7, 13, seed=1), randn(3, 5, 7, seed=2)
    yield "linear", lambda x: invariant.linear(x, weight), randn(200, 13)
    yield "linear, many", lambda x: invariant.linear(x, randn(48, 320, seed=3)), randn(200, 320)
    yield "head_linear", lambda x: invariant.head_linear(x, heads), randn(200, 3, 7)
    yield "router_scores", lambda x: invariant.router_scores(x, randn(3, 13, seed=4)), randn(200, 13)
    yield "swiglu", lambda x: invariant.swiglu(4 * x, x), randn(200, 7)
    expert_TK = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(n))[:2] for n in range(200)])
    gate_up, down = randn(5, 18, 11, seed=5), randn(5, 11, 9, seed=6)

    def experts(x):
        chosen = expert_TK[x[:, -1].long()]  # the last value is the row's number
        return invariant.moe_experts(x[:, :-1], gate_up, down, chosen, 0.5 + chosen / 3)

    yield "moe_experts", experts, torch.cat((randn(200, 11), torch.arange(200.0)[:, None]), 1)


@pytest.mark.parametrize(("op", "x"), [pytest.param(op, x, id=name) for name, op, x in row_wise_ops()])
def test_rows_do_not_depend_on_their_number_nor_place(op, x):
    whole = op(x)
    for count in (*range(1, 36), 63, 64, 65, 130):
        for first in (0, 1, 70):
            assert torch.equal(op(x[first : first + count]), whole[first : first + count]), (count, first)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=4), st.integers(0, 100), st.data())
def test_the_selection_among_near_ties_is_the_same_in_every_batch(lengths, past, data):
    """All scores lie within some roundings of each other, so that any other sum would choose other keys."""
    lengths = [*lengths, past + 20]
    parts = [
        (randn(n, 3, 16, seed=n), randn(1, 16) + 1e-7 * randn(n, 16, seed=n + 1), randn(n, 3, seed=n + 2))
        for n in lengths
    ]
    q, k, w = (torch.cat(x) for x in zip(*parts, strict=True))
    together = invariant.indexer_topk(q, k, w, cumulative(lengths), cumulative(lengths), 8).split(lengths)
    for part, length, wanted in zip(parts, lengths, together, strict=True):
        new = data.draw(st.integers(1, length))
        q, k, w = part[0][-new:], part[1], part[2][-new:]
        assert torch.equal(invariant.indexer_topk(q, k, w, cumulative([new]), cumulative([length]), 8), wanted[-new:])


@settings(max_examples=15)
@given(st.lists(st.integers(1, 140), min_size=1, max_size=3), st.lists(st.integers(1, 139), max_size=4))
def test_the_delta_rule_is_the_same_in_every_batch_and_cut(lengths, cuts):
    lengths = [*lengths, 140]
    heads, key, value = 3, 13, 7
    tokens = sum(lengths)
    k = torch.nn.functional.normalize(randn(tokens, heads, key, seed=1), dim=-1)
    gates = -randn(tokens, heads, seed=3).square(), randn(tokens, heads, seed=4).sigmoid()
    values = randn(tokens, heads, key), k, randn(tokens, heads, value, seed=2), *gates
    state = randn(len(lengths), heads, key, value, seed=5)
    whole, states = invariant.gated_delta_rule(*values, state, cumulative(lengths), 0.3)
    rows = range(tokens - 140, tokens)
    state, outs = state[-1:], []
    for start, end in pairwise(sorted({0, 140, *cuts})):
        part = [x[rows[start] : rows[end - 1] + 1].clone() for x in values]
        out, state = invariant.gated_delta_rule(*part, state, cumulative([end - start]), 0.3)
        outs.append(out)
    assert torch.equal(torch.cat(outs), whole[-140:]) and torch.equal(state, states[-1:])


def test_extreme_gates_have_finite_gradients():
    gate = torch.tensor([[-1e4, -200.0, -88.0, 0.0, 88.0, 1e4]], requires_grad=True)
    out = invariant.swiglu(gate, torch.ones_like(gate))
    out.sum().backward()
    torch.testing.assert_close(out.detach(), torch.nn.functional.silu(gate.detach()))
    torch.testing.assert_close(gate.grad, torch.tensor([[0.0, 0.0, 0.0, 0.5, 1.0, 1.0]]))


def test_they_are_bound_in_place_of_all_kernels():
    ops = Ops(None, deterministic=True)
    bind = ops.binder(torch.float32, "cpu")
    assert bind.deterministic and not Ops(None).binder(torch.float32, "cpu").deterministic
    for op in SPECS:
        assert bind(op) is invariant.OPS.get(op, SPECS[op].reference)
    assert {c.call.op for c in ops.choices.values() if c.kernel == "invariant"} == invariant.OPS.keys()
