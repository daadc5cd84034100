"""Ops whose result for a sequence has the same bits in every batch (``trainer.deterministic=true``).

They replace all kernels. A sequence's rows depend neither on the batch's other sequences, nor on its position among
them, nor on its split into prompt, chunks and decoded tokens. Four rules ensure this (docs/numerics.md gives causes):

- every matrix product is a batch of products of one fixed shape, padded with zeros, so the number of rows never
  selects the algorithm and no row is at an edge;
- attention splits a segment's keys into blocks counted from its first key and adds the blocks' results in that order;
  a hidden key has weight exactly 0, so further blocks change nothing;
- the gated delta rule runs token by token and sums over keys by halving, so every operation is elementwise;
- the exponential is the only elementary function, because sigmoid rounds differently at the end of a vector loop.

Gradients are sums over tokens and so depend on the batch; two equal batches give equal gradients.

Shapes as in `reference`; I blocks of queries, J blocks of keys, M rows of a block, R query heads per key/value head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops import reference
from arcforge_core.ops.quant import Quantised, dequantise, wide_rows
from arcforge_core.ops.reference import hadamard_matrix

ROWS = 32
"""Rows of a linear layer's products."""
LANES = 16
"""Columns and inner sizes are multiples of this: torch computes narrower ones with other code, differently per row."""
QUERIES, KEYS = 16, 64
"""Queries and keys of attention's products."""
TILE = 128
"""Number of queries whose scores exist at the same time."""


def _pad(x: Tensor, dim: int, multiple: int) -> Tensor:
    """Appends zeros along `dim` up to a multiple."""
    short = -x.shape[dim] % multiple
    if not short:
        return x
    shape = list(x.shape)
    shape[dim] = short
    return torch.cat((x, x.new_zeros(shape)), dim)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Returns ``a @ b`` of batches of matrices."""
    padded_b = _pad(_pad(b, -2, LANES), -1, LANES)
    if b.dtype == torch.float64:  # of a transposed factor torch rounds one product otherwise than a batch of them
        padded_b = padded_b.contiguous()
    return torch.matmul(_pad(a, -1, LANES), padded_b)[..., : b.shape[-1]]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight_NK: Tensor) -> Tensor:
        ctx.save_for_backward(x_TK, weight_NK)
        x_IMK = _pad(x_TK, 0, ROWS).unflatten(0, (-1, ROWS))
        return _product(x_IMK, weight_NK.mT[None]).flatten(0, 1)[: len(x_TK)]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x_TK, weight_NK = ctx.saved_tensors
        (grad_TN,) = grads
        return grad_TN @ weight_NK, grad_TN.mT @ x_TK


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """See `reference.linear`."""
    out_TN: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight_NK)
    out = out_TN.view(*x.shape[:-1], -1)
    return out if bias_N is None else out + bias_N


def head_linear(x_THK: Tensor, weight_HNK: Tensor) -> Tensor:
    """See `reference.head_linear`."""
    return torch.stack([linear(x, w) for x, w in zip(x_THK.unbind(1), weight_HNK.unbind(0), strict=True)], dim=1)


def hadamard(x: Tensor) -> Tensor:
    """See `reference.hadamard`."""
    return linear(x, hadamard_matrix(x.shape[-1], x).T.contiguous())


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x.clamp(min=-80)))  # below -80 the exponential's gradient overflows


def router_scores(x_TD: Tensor, weight_ED: Tensor) -> Tensor:
    """See `reference.router_scores`."""
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    return _sigmoid(linear(x_TD.to(wide), weight_ED.to(wide)))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `reference.swiglu`."""
    wide = gate.to(torch.promote_types(gate.dtype, torch.float32))
    return (wide * _sigmoid(wide)).to(gate.dtype) * up


def moe_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """See `reference.moe_experts`; a token's experts are added in the order of its choices."""
    gate_ups, downs = gate_up_EFD.unbind(), down_EDF.unbind()

    def run(x: Tensor, expert: int) -> Tensor:
        return linear(swiglu(*linear(x, gate_ups[expert]).chunk(2, dim=-1)), downs[expert])

    return _each_expert(x_TD, len(down_EDF), run, expert_TK, gate_TK)


def _each_expert(
    x_TD: Tensor, experts: int, run: Callable[[Tensor, int], Tensor], expert_TK: Tensor, gate_TK: Tensor
) -> Tensor:
    expert_R = expert_TK.flatten()
    order_R = expert_R.argsort(stable=True)
    counts = torch.bincount(expert_R, minlength=experts).tolist()
    rows_of_expert = x_TD.index_select(0, order_R // expert_TK.shape[1]).split(counts)
    y_RD = torch.cat([run(x, expert) for expert, x in enumerate(rows_of_expert) if len(x)])
    y_TKD = y_RD[order_R.argsort()].unflatten(0, expert_TK.shape) * gate_TK[..., None].to(x_TD.dtype)
    return _add(y_TKD, dim=1)


def _add(x: Tensor, dim: int) -> Tensor:
    """Sums along `dim` from the first to the last; `Tensor.sum` guarantees no order."""
    return reduce(torch.add, x.unbind(dim))


def _tiles(q_THK: Tensor, keys: int) -> Iterator[tuple[slice, Tensor, int]]:
    """Yields (rows, their positions in the segment, number of visible key blocks) of each tile of queries.

    The positions extend to a whole block of queries.
    """
    queries = len(q_THK)
    for start in range(0, queries, TILE):
        rows = slice(start, min(start + TILE, queries))
        length = -(-(rows.stop - start) // QUERIES) * QUERIES
        past = keys - queries
        positions_T = torch.arange(past + start, past + start + length, device=q_THK.device)
        yield rows, positions_T, -(-(past + rows.stop) // KEYS)


def _key_blocks(x_SGK: Tensor) -> Tensor:
    """Returns [J, G, KEYS, K]."""
    return torch.unflatten(_pad(x_SGK, 0, KEYS), 0, (-1, KEYS)).transpose(1, 2)


def _query_blocks(x_THE: Tensor, groups: int) -> Tensor:
    """Returns [I, G, M, E]: rows of QUERIES queries, each with the R heads of a key/value head."""
    x_IQHE = torch.unflatten(_pad(x_THE, 0, QUERIES), 0, (-1, QUERIES))
    x_IQGRE = torch.unflatten(x_IQHE, 2, (groups, -1))
    return x_IQGRE.transpose(1, 2).flatten(2, 3)


def _rows(x_IGME: Tensor) -> Tensor:
    """Returns [T, H, E], the inverse of `_query_blocks`, with T a multiple of QUERIES."""
    return torch.unflatten(x_IGME, 2, (QUERIES, -1)).transpose(1, 2).flatten(2, 3).flatten(0, 1)


def _scores(q_THK: Tensor, k_JGXK: Tensor) -> Tensor:
    """Returns the dot products [T, H, S], T a multiple of QUERIES, S = J * KEYS."""
    q_IGMK = _query_blocks(q_THK, k_JGXK.shape[1])
    scores_IJGMX = _product(q_IGMK[:, None], k_JGXK[None].mT)
    return _rows(scores_IJGMX.permute(0, 2, 3, 1, 4).flatten(-2))


def _weighted(probs_THS: Tensor, v_JGXV: Tensor) -> Tensor:
    """Returns the sums of values with these weights, [T, H, V]."""
    probs_IGMJX = torch.unflatten(_query_blocks(probs_THS, v_JGXV.shape[1]), -1, (-1, KEYS))
    return _rows(_add(_product(probs_IGMJX.permute(0, 3, 1, 2, 4), v_JGXV[None]), dim=1))


def _attend(q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, scale: float, selected_TS: Tensor | None = None) -> Tensor:
    """Attention of one segment to its visible keys, restricted to the selected ones if given."""
    k_JGXK, v_JGXV = _key_blocks(k_SGK), _key_blocks(v_SGV)
    outs = []
    for rows, positions_T, blocks in _tiles(q_THK, len(k_SGK)):
        visible_TS = torch.arange(blocks * KEYS, device=q_THK.device) <= positions_T[:, None]
        if selected_TS is not None:  # padding rows keep their visible keys: without any, weights are NaN
            visible_TS[: rows.stop - rows.start] &= selected_TS[rows, : blocks * KEYS]
        scores_THS = _scores(q_THK[rows], k_JGXK[:blocks]) * scale
        wide = torch.promote_types(scores_THS.dtype, torch.float32)
        probs_THS = scores_THS.masked_fill(~visible_TS[:, None], float("-inf")).softmax(-1, dtype=wide)
        outs.append(_weighted(probs_THS.to(v_SGV.dtype), v_JGXV[:blocks])[: rows.stop - rows.start])
    return torch.cat(outs)


def quant_linear(
    x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None = None, rounds: bool = True
) -> Tensor:
    """See `specs.SPECS`; sums of integers are exact in every batch."""
    if rounds:
        return reference.quant_linear(x, weight, scale_NG, bias_N, rounds)
    return linear(x, dequantise(Quantised(weight, scale_NG), x.dtype), bias_N)


def quant_experts(
    x_TD: Tensor, gate_up: Tensor, gate_up_scale_EFG: Tensor, down: Tensor, down_scale_EDG: Tensor, expert_TK: Tensor,
    gate_TK: Tensor, rounds: bool = True,
) -> Tensor:  # fmt: skip
    """See `specs.SPECS`; otherwise as `moe_experts`."""

    def run(x: Tensor, expert: int) -> Tensor:
        inner = quant_linear(x, gate_up[expert], gate_up_scale_EFG[expert], None, rounds)
        return quant_linear(swiglu(*inner.chunk(2, dim=-1)), down[expert], down_scale_EDG[expert], None, rounds)

    return _each_expert(x_TD, len(down), run, expert_TK, gate_TK)


def attention_varlen(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float
) -> Tensor:
    """See `reference.attention_varlen`."""
    segments = reference.segments(cu_query, cu_key)
    return torch.cat([_attend(q_THK[rows_q], k_SGK[rows_k], v_SGV[rows_k], scale) for rows_q, rows_k in segments])


def attention_decode(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `reference.attention_decode`."""
    k_SGK, v_SGV = (reference.laid_out(x, cu_key, pages) for x in (k_SGK, v_SGV))
    return attention_varlen(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)


def window_attention(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, window: int, scale: float
) -> Tensor:
    """See `reference.window_attention`; blocks are counted from a segment's first key, so all keys are required."""
    outs = []
    for rows_q, rows_k in reference.segments(cu_query, cu_key):
        q, k = q_THK[rows_q], k_SGK[rows_k]
        seen_TS = _pad(reference.window_mask(len(q), len(k), window, q.device), 1, KEYS)
        outs.append(_attend(q, k, v_SGV[rows_k], scale, seen_TS))
    return torch.cat(outs)


def mla_decode(
    q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `reference.mla_decode`."""
    kv_SC = reference.laid_out(kv_SC, cu_key, pages)
    return attention_varlen(q_THC, kv_SC[:, None], kv_SC[:, None, :latent_dim], cu_query, cu_key, scale)


def sparse_mla(
    q_THC: Tensor, kv_SC: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `reference.sparse_mla`; computes all scores and masks unselected keys. If all keys are selected, the bits are
    those of `mla_decode`.
    """
    kv_SC = reference.laid_out(kv_SC, cu_key, pages)
    outs = []
    for rows_q, rows_k in reference.segments(cu_query, cu_key):
        kv, index_TK = kv_SC[rows_k], indices_TK[rows_q]
        padded = -(-len(kv) // KEYS) * KEYS
        selected_TS = torch.zeros(len(index_TK), padded + 1, dtype=torch.bool, device=kv.device)
        selected_TS.scatter_(1, index_TK.masked_fill(index_TK < 0, padded), True)
        outs.append(_attend(q_THC[rows_q], kv[:, None], kv[:, None, :latent_dim], scale, selected_TS[:, :padded]))
    return torch.cat(outs)


@torch.no_grad()
def indexer_topk(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool = True,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `reference.indexer_topk`."""
    k_SD = wide_rows(reference.laid_out(k_SD, cu_key, pages))
    wide = torch.promote_types(q_TID.dtype, torch.float32)
    outs = []
    for rows_q, rows_k in reference.segments(cu_query, cu_key):
        q, w, k_J1XD = q_TID[rows_q].to(wide), w_TI[rows_q].to(wide), _key_blocks(k_SD[rows_k, None].to(wide))
        for rows, positions_T, blocks in _tiles(q, rows_k.stop - rows_k.start):
            dots_TIS = _scores(q[rows], k_J1XD[:blocks])[: rows.stop - rows.start]
            scores_TS = _add((dots_TIS.relu() if use_relu else dots_TIS) * w[rows, :, None], dim=1)
            visible_TS = torch.arange(blocks * KEYS, device=q.device) <= positions_T[: len(scores_TS), None]
            outs.append(reference.top_keys(scores_TS, visible_TS, topk))
    return torch.cat(outs)


def _add_halves(x: Tensor, dim: int) -> Tensor:
    """Sums along `dim` by adding its second half to the first, repeatedly: elementwise, and faster than one by one."""
    while x.shape[dim] > 1:
        x = reduce(torch.add, _pad(x, dim, 2).chunk(2, dim))
    return x.squeeze(dim)


def _delta_steps(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, decay_TH: Tensor, beta_TH: Tensor, state_HKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the unscaled outputs of a segment's tokens, and the state after them."""
    outs = []
    for q_HK, k_HK, v_HV, decay_H, beta_H in zip(q_THK, k_THK, v_THV, decay_TH, beta_TH, strict=True):
        state_HKV = state_HKV * decay_H[:, None, None]
        error_HV = (v_HV - _add_halves(state_HKV * k_HK[..., None], 1)) * beta_H[:, None]
        state_HKV = state_HKV + k_HK[..., None] * error_HV[:, None]
        outs.append(_add_halves(state_HKV * q_HK[..., None], 1))
    return torch.stack(outs), state_HKV


def gated_delta_rule(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_NHKV: Tensor, cu_query: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See `reference.gated_delta_rule`; runs token by token, because chunks would round depending on the split.

    The backward pass recomputes the states of `KEYS` tokens at a time, to avoid storing one per token.
    """
    given = (q_THK, k_THK, v_THV, g_TH.exp(), beta_TH, state_NHKV)
    wide = reduce(torch.promote_types, (x.dtype for x in given), torch.float32)
    *tokens, states_NHKV = (x.to(wide) for x in given)
    outs, states = [], []
    for (start, end), state_HKV in zip(pairwise(cu_query.tolist()), states_NHKV, strict=True):
        for first in range(start, end, KEYS):
            part = (*(x_T[first : min(first + KEYS, end)] for x_T in tokens), state_HKV)
            if torch.is_grad_enabled():
                out_THV, state_HKV = checkpoint(_delta_steps, *part, use_reentrant=False, preserve_rng_state=False)
            else:
                out_THV, state_HKV = _delta_steps(*part)
            outs.append(out_THV)
        states.append(state_HKV)
    return (torch.cat(outs) * scale).to(v_THV.dtype), torch.stack(states).to(state_NHKV.dtype)


def linear_cross_entropy(x_TD: Tensor, weight_WD: Tensor, target_T: Tensor, weight_T: Tensor) -> Tensor:
    """See `reference.linear_cross_entropy`: a token's loss has the same bits in every batch, their sum does not."""
    logits_TW = linear(x_TD, weight_WD)
    logits_TW = logits_TW.to(torch.promote_types(logits_TW.dtype, torch.float32))
    nll_T = F.cross_entropy(logits_TW, target_T, reduction="none")
    return (nll_T * weight_T.detach().to(nll_T.dtype)).sum()


OPS: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "head_linear": head_linear,
    "router_scores": router_scores,
    "hadamard": hadamard,
    "swiglu": swiglu,
    "moe_experts": moe_experts,
    "quant_linear": quant_linear,
    "quant_experts": quant_experts,
    "attention_varlen": attention_varlen,
    "window_attention": window_attention,
    "attention_decode": attention_decode,
    "mla_decode": mla_decode,
    "sparse_mla": sparse_mla,
    "indexer_topk": indexer_topk,
    "gated_delta_rule": gated_delta_rule,
    "linear_cross_entropy": linear_cross_entropy,
    "rms_norm": reference.rms_norm,
    "rope": reference.rope,
    "argmax_logprob": reference.argmax_logprob,
}
"""The last three and all other ops work on each value, or on a row's values in one order, so any kernel is
batch-invariant. The last three are references nevertheless: kernels without gradients would give an engine other bits
than the trainer, and log-probs other bits than torch's log-softmax."""
