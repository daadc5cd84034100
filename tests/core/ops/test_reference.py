"""The references against independent formulas: torch's own operators and plain loops."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.batch import cumulative
from arcforge_core.model.rope import rope_tables
from arcforge_core.ops import reference


def randn(*size, seed=0, dtype=torch.float64):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_rms_norm_equals_torch():
    x, weight = randn(5, 7), randn(7, seed=1)
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-3), F.rms_norm(x, (7,), weight, 1e-3))


def test_rms_norm_in_bf16_casts_before_the_weight():
    x, weight = randn(3, 8).bfloat16(), randn(8, seed=1).bfloat16()
    wide = x.float()
    wanted = (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).bfloat16() * weight
    assert torch.equal(reference.rms_norm(x, weight, 1e-6), wanted)


def test_rope_is_a_complex_product_and_knows_only_distances():
    x_THR, (cos_TF, sin_TF) = randn(6, 2, 8), rope_tables(torch.arange(6), 8, 100.0)
    rotated = reference.rope(x_THR, cos_TF, sin_TF)
    pairs = torch.view_as_complex(x_THR.unflatten(-1, (-1, 2))) * torch.complex(cos_TF, sin_TF)[:, None]
    torch.testing.assert_close(rotated, torch.view_as_real(pairs).flatten(-2))

    def dot(i, j):
        tables = rope_tables(torch.tensor([i, j]), 8, 100.0)
        q, k = reference.rope(x_THR[:2], *tables)
        return (q * k).sum(-1)

    torch.testing.assert_close(dot(3, 1), dot(103, 101), rtol=1e-5, atol=1e-5)


def test_swiglu():
    gate, up = randn(3, 4), randn(3, 4, seed=1)
    torch.testing.assert_close(reference.swiglu(gate, up), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize(("queries", "keys"), [([5], [5]), ([1, 3], [1, 3]), ([2, 1, 4], [6, 9, 4])])
def test_attention_varlen_equals_masked_sdpa(queries, keys):
    q, k, v = randn(sum(queries), 4, 6), randn(sum(keys), 2, 6, seed=1), randn(sum(keys), 2, 5, seed=2)
    out = reference.attention_varlen(q, k, v, cumulative(queries), cumulative(keys), 0.3)
    mask = torch.zeros(sum(queries), sum(keys), dtype=torch.bool)
    row = column = 0
    for query, key in zip(queries, keys, strict=True):
        for j in range(query):
            mask[row + j, column : column + key - query + j + 1] = True
        row, column = row + query, column + key
    wanted = F.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), mask, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(out, wanted.transpose(0, 1))


def test_mla_decode_shares_one_entry_among_heads():
    q, kv, cu = randn(3, 4, 8), randn(7, 8, seed=1), (cumulative([3]), cumulative([7]))
    wanted = reference.attention_varlen(q, kv[:, None].expand(7, 4, 8), kv[:, None, :5].expand(7, 4, 5), *cu, 0.4)
    torch.testing.assert_close(reference.mla_decode(q, kv, *cu, 5, 0.4), wanted)


def brute_force_topk(scores, visible, topk):
    ranked = sorted(range(visible), key=lambda s: (-scores[s], s))[:topk]
    return sorted(ranked) + [-1] * (topk - len(ranked))


@settings(max_examples=30, deadline=None)
@given(
    query=st.integers(1, 6),
    past=st.integers(0, 8),
    topk=st.integers(1, 10),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_indexer_topk_equals_brute_force_with_many_ties(query, past, topk, relu, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k, w = (
        torch.randint(-1, 2, size, generator=generator).double()
        for size in ((query, 2, 3), (query + past, 3), (query, 2))
    )
    got = reference.indexer_topk(q, k, w, cumulative([query]), cumulative([query + past]), topk, relu)
    for t in range(query):
        dots = q[t] @ k.T
        scores = (w[t] @ (dots.clamp(min=0) if relu else dots)).tolist()
        assert got[t].tolist() == brute_force_topk(scores, past + t + 1, topk)


def test_indexer_topk_stays_in_float64():
    q = torch.ones(1, 1, 1, dtype=torch.float64)
    k = torch.tensor([[1.0], [1.0 + 1e-12]], dtype=torch.float64)
    cu = cumulative([1]), cumulative([2])
    assert reference.indexer_topk(q, k, torch.ones(1, 1, dtype=torch.float64), *cu, 1).tolist() == [[1]]


def test_sparse_mla_over_every_key_is_dense_and_minus_one_is_nothing():
    q, kv, cu = randn(4, 2, 6), randn(6, 6, seed=1), (cumulative([4]), cumulative([6]))
    every_TK = torch.arange(6).expand(4, 6)
    every_TK = torch.where(every_TK <= torch.arange(2, 6)[:, None], every_TK, -1)
    torch.testing.assert_close(
        reference.sparse_mla(q, kv, every_TK, *cu, 4, 0.5), reference.mla_decode(q, kv, *cu, 4, 0.5)
    )
    one_TK = torch.tensor([[2, -1, -1]] * 4)
    torch.testing.assert_close(reference.sparse_mla(q, kv, one_TK, *cu, 4, 0.5), kv[2, :4].expand(4, 2, 4))


def delta_inputs(lengths, heads=2, key=3, value=4):
    tokens = sum(lengths)
    q, k = randn(tokens, heads, key), F.normalize(randn(tokens, heads, key, seed=1), dim=-1)
    gates = -randn(tokens, heads, seed=3).square(), randn(tokens, heads, seed=4).sigmoid()
    state = randn(len(lengths), heads, key, value, seed=5)
    return q, k, randn(tokens, heads, value, seed=2), *gates, state, cumulative(lengths), 0.7


def test_gated_delta_rule_is_a_product_of_transitions():
    """``S_t = e^g (I - beta k k^T) S_(t-1) + beta k v^T``, head by head."""
    q, k, v, g, beta, states, cu, scale = delta_inputs([3, 1])
    out, last = reference.gated_delta_rule(q, k, v, g, beta, states, cu, scale)
    for n, h in ((0, 0), (0, 1), (1, 0), (1, 1)):
        state = states[n, h]
        for t in range(int(cu[n]), int(cu[n + 1])):
            forget = torch.eye(3) - beta[t, h] * torch.outer(k[t, h], k[t, h])
            state = g[t, h].exp() * forget @ state + beta[t, h] * torch.outer(k[t, h], v[t, h])
            torch.testing.assert_close(out[t, h], scale * q[t, h] @ state)
        torch.testing.assert_close(last[n, h], state)


def test_gated_delta_rule_forgets_and_corrects():
    """Without decay a token with beta 1 is read back by its key; a decay to nothing leaves only the last token."""
    q, k, v, g, _, states, cu, _ = delta_inputs([4, 2])
    ones, nothing = torch.ones_like(g), torch.full_like(g, -1e4)
    torch.testing.assert_close(reference.gated_delta_rule(k, k, v, 0 * g, ones, states, cu, 1.0)[0], v)
    out, last = reference.gated_delta_rule(q, k, v, nothing, ones, states, cu, 1.0)
    torch.testing.assert_close(out, (q * k).sum(-1, keepdim=True) * v)
    torch.testing.assert_close(last[1], k[5, :, :, None] * v[5, :, None])


def test_gated_delta_rule_keeps_its_state_in_fp32():
    """A step of 1e-3 is lost beside 1 in bfloat16."""
    k = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).bfloat16()
    v = torch.tensor([[[1e-3]], [[1.0]]]).bfloat16()
    ones, state = torch.ones(2, 1), torch.ones(1, 1, 2, 1)
    out, state = reference.gated_delta_rule(k, k, v, 0 * ones, 1e-3 * ones, state, cumulative([2]), 1.0)
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(state.flatten(), torch.tensor([1.0 - 1e-3 * (1 - 1e-3), 1.0]), rtol=1e-6, atol=0)


def test_moe_experts_equals_a_loop_over_tokens():
    x, gate_up, down = randn(5, 4), randn(3, 6, 4, seed=1), randn(3, 4, 3, seed=2)
    expert_TK, gate_TK = randn(5, 3, seed=3).argsort(-1)[:, :2], randn(5, 2, seed=4)
    rows = []
    for t in range(5):
        row = torch.zeros(4, dtype=torch.float64)
        for e, weight in zip(expert_TK[t].tolist(), gate_TK[t], strict=True):
            gate, up = (gate_up[e] @ x[t]).split(3)
            row += weight * (down[e] @ (F.silu(gate) * up))
        rows.append(row)
    torch.testing.assert_close(reference.moe_experts(x, gate_up, down, expert_TK, gate_TK), torch.stack(rows))


def test_linear_cross_entropy_is_a_weighted_sum():
    x, weight, target = randn(4, 3), randn(5, 3, seed=1), torch.tensor([0, 4, 2, 2])
    weight_T = torch.tensor([1.0, 0.0, 2.0, 0.5], requires_grad=True)
    loss = reference.linear_cross_entropy(x.requires_grad_(), weight, target, weight_T)
    wanted = sum(
        w * (math.log(sum(math.exp(z) for z in row)) - row[t])
        for w, row, t in zip(weight_T.tolist(), (x @ weight.T).tolist(), target.tolist(), strict=True)
    )
    assert loss.item() == pytest.approx(wanted)
    loss.backward()
    assert weight_T.grad is None and not x.grad[1].any()


@pytest.mark.parametrize("shape", [(2, 4, 9), (1, 9, 4), (3, 5, 5)])
def test_newton_schulz_orthogonalises(shape):
    steps = [(1.875, -1.25, 0.375)] * 25  # the classical quintic, which converges to 1
    x = reference.newton_schulz(randn(*shape), steps)
    singular = torch.linalg.svdvals(x)
    torch.testing.assert_close(singular, torch.ones_like(singular), rtol=1e-6, atol=1e-6)
    assert not reference.newton_schulz(torch.zeros(1, 3, 4), steps).any()


DIFFERENTIABLE = {
    "rms_norm": lambda: (lambda x, w: reference.rms_norm(x, w, 1e-3), (randn(2, 3), randn(3, seed=1))),
    "rope": lambda: (lambda x: reference.rope(x, *rope_tables(torch.arange(2), 4, 10.0)), (randn(2, 1, 4),)),
    "attention_varlen": lambda: (
        lambda q, k, v: reference.attention_varlen(q, k, v, cumulative([2, 1]), cumulative([2, 3]), 0.5),
        (randn(3, 2, 2), randn(5, 1, 2, seed=1), randn(5, 1, 3, seed=2)),
    ),
    "sparse_mla": lambda: (
        lambda q, kv: reference.sparse_mla(
            q, kv, torch.tensor([[0, -1], [0, 2]]), cumulative([2]), cumulative([3]), 2, 0.5
        ),
        (randn(2, 2, 3), randn(3, 3, seed=1)),
    ),
    "gated_delta_rule": lambda: (
        lambda *args: reference.gated_delta_rule(*args, cumulative([2, 1]), 0.7),
        delta_inputs([2, 1])[:6],
    ),
    "moe_experts": lambda: (
        lambda x, a, b, g: reference.moe_experts(x, a, b, torch.tensor([[0, 2], [2, 1]]), g),
        (randn(2, 2), randn(3, 4, 2, seed=1), randn(3, 2, 2, seed=2), randn(2, 2, seed=3)),
    ),
    "linear_cross_entropy": lambda: (
        lambda x, w: reference.linear_cross_entropy(x, w, torch.tensor([1, 0]), torch.tensor([1.0, 2.0])),
        (randn(2, 3), randn(4, 3, seed=1)),
    ),
}


@pytest.mark.parametrize("op", sorted(DIFFERENTIABLE))
def test_gradients(op):
    fn, args = DIFFERENTIABLE[op]()
    assert torch.autograd.gradcheck(fn, [a.requires_grad_() for a in args])


def test_gradients_are_the_same_bits_with_two_threads():
    """Keys that many queries selected are where threads meet."""
    index_TK = torch.randint(256, (2048, 32), generator=torch.Generator().manual_seed(0))
    q_THC, kv_SC, lengths = randn(2048, 1, 48, seed=1), randn(2048, 48), cumulative([2048])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        grads = set()
        for _ in range(5):
            kv = kv_SC.float().requires_grad_()
            reference.sparse_mla(q_THC.float(), kv, index_TK, lengths, lengths, 16, 0.2).square().sum().backward()
            grads.add(kv.grad.numpy().tobytes())
        assert len(grads) == 1
    finally:
        torch.set_num_threads(threads)
