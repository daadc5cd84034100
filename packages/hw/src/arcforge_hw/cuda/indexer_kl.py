"""The indexer's loss over selected keys in Triton: memory per selected key is two fp32 numbers.

Forward has three passes: the logarithm of each head's sum; the heads' mean weights and the index scores, tile by tile;
the loss of a row, whose scores become their gradient ``softmax(scores) - weights`` in place. Backward, queries and
weights gather their keys again; keys sum over the queries that selected them, in their order and without atomics.

Shapes: T query tokens, S keys, H heads of a block, C a part of latent plus rope, I index heads, D index head size,
K selected keys, in a tile or a row; P pairs of a query and a key that it selected.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcforge_hw.cuda.launch import check, power_of_two, row_warps, tuned
from arcforge_hw.cuda.sparse_mla import pairs_by_key
from arcforge_hw.torch_ops.indexer_kl import register
from arcforge_hw.torch_ops.sparse_mla import key_rows


@triton.jit
def head_scores(q, kv, h, row_K, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_C: tl.constexpr):
    """Products [H, K] of some heads of the query at `q` with entries; rows of -1 count as zeros."""
    score_HK = tl.zeros((h.shape[0], row_K.shape[0]), dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        inside = (c < WIDTH)[None, :]
        q_HC = tl.load(q + h[:, None] * WIDTH + c[None, :], mask=(h < HEADS)[:, None] & inside, other=0.0)
        kv_at = kv + row_K[:, None].to(tl.int64) * WIDTH + c[None, :]
        kv_KC = tl.load(kv_at, mask=(row_K >= 0)[:, None] & inside, other=0.0)
        score_HK = tl.dot(q_HC, tl.trans(kv_KC), score_HK, input_precision="ieee")
    return score_HK


@triton.jit
def kl_sums(
    q, kv, rows, lse, scale, HEADS: tl.constexpr, WIDTH: tl.constexpr, TOPK: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp of a block of heads of one query per program."""
    token = tl.program_id(0).to(tl.int64)
    h, k = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_K)
    top_H = tl.full((BLOCK_H,), float("-inf"), dtype=tl.float32)
    total_H = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for start in range(0, TOPK, BLOCK_K):
        row_K = tl.load(rows + token * TOPK + start + k, mask=start + k < TOPK, other=-1)
        score_HK = head_scores(q + token * HEADS * WIDTH, kv, h, row_K, HEADS, WIDTH, BLOCK_C) * scale
        score_HK = tl.where((row_K >= 0)[None, :], score_HK, float("-inf"))
        new_H = tl.maximum(top_H, tl.max(score_HK, axis=1))
        finite_H = tl.where(new_H == float("-inf"), 0.0, new_H)  # a tile without a key
        total_H = total_H * tl.exp(top_H - finite_H) + tl.sum(tl.exp(score_HK - finite_H[:, None]), axis=1)
        top_H = new_H
    tl.store(lse + token * HEADS + h, top_H + tl.log(total_H), mask=h < HEADS)


@triton.jit
def index_dots(q, k, row_K, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_D: tl.constexpr):
    """Products [I, K] of the index query at `q` with index keys, and the keys [K, D]; rows of -1 are zeros."""
    i, d = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_D)
    inside = (d < WIDTH)[None, :]
    q_ID = tl.load(q + i[:, None] * WIDTH + d[None, :], mask=(i < HEADS)[:, None] & inside, other=0.0)
    k_at = k + row_K[:, None].to(tl.int64) * WIDTH + d[None, :]
    k_KD = tl.load(k_at, mask=(row_K >= 0)[:, None] & inside, other=0.0)
    return tl.dot(q_ID, tl.trans(k_KD), input_precision="ieee"), k_KD


@triton.jit
def kl_tiles(
    q, kv, index_q, index_k, weight, rows, lse, target, scores, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, INDEX_HEADS: tl.constexpr, INDEX_WIDTH: tl.constexpr,
    TOPK: tl.constexpr, RELU: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Mean attention weights and index scores of some keys of one query per program."""
    token = tl.program_id(0).to(tl.int64)
    k, i = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_I)
    row_K = tl.load(rows + token * TOPK + k, mask=k < TOPK, other=-1)
    sum_K = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for first in range(0, HEADS, BLOCK_H):
        h = first + tl.arange(0, BLOCK_H)
        score_HK = head_scores(q + token * HEADS * WIDTH, kv, h, row_K, HEADS, WIDTH, BLOCK_C) * scale
        lse_H = tl.load(lse + token * HEADS + h, mask=h < HEADS, other=float("inf"))
        sum_K += tl.sum(tl.exp(score_HK - lse_H[:, None]), axis=0)
    dot_IK, _ = index_dots(
        index_q + token * INDEX_HEADS * INDEX_WIDTH, index_k, row_K, INDEX_HEADS, INDEX_WIDTH, BLOCK_I, BLOCK_D
    )
    if RELU:
        dot_IK = tl.maximum(dot_IK, 0.0)
    weight_I = tl.load(weight + token * INDEX_HEADS + i, mask=i < INDEX_HEADS, other=0.0)
    index_K = tl.sum(weight_I[:, None] * dot_IK, axis=0)
    tl.store(target + token * TOPK + k, tl.where(row_K >= 0, sum_K / HEADS, 0.0), mask=k < TOPK)
    tl.store(scores + token * TOPK + k, tl.where(row_K >= 0, index_K, float("-inf")), mask=k < TOPK)


@triton.jit
def kl_rows(target, scores, loss, TOPK: tl.constexpr, BLOCK_K: tl.constexpr):
    """The divergence of one query per program; its gradient overwrites the scores."""
    token, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_K)
    p_K = tl.load(target + token * TOPK + k, mask=k < TOPK, other=0.0)
    score_K = tl.load(scores + token * TOPK + k, mask=k < TOPK, other=float("-inf"))
    top = tl.max(score_K, axis=0)
    exp_K = tl.exp(score_K - top)
    total = tl.sum(exp_K, axis=0)
    some_K = tl.where(p_K > 0, p_K, 1.0)  # a weight of zero adds nothing, and its score may be -inf
    difference_K = tl.where(p_K > 0, tl.log(some_K) - (score_K - top - tl.log(total)), 0.0)
    tl.store(loss + token, tl.sum(p_K * difference_K, axis=0))
    tl.store(scores + token * TOPK + k, exp_K / total - p_K, mask=k < TOPK)


@triton.jit
def kl_backward_queries(
    grad, dscores, index_q, index_k, weight, rows, dq, dweight,
    INDEX_HEADS: tl.constexpr, INDEX_WIDTH: tl.constexpr, TOPK: tl.constexpr, RELU: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients of one index query and its weights per program."""
    token = tl.program_id(0).to(tl.int64)
    k, i, d = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_D)
    at = index_q + token * INDEX_HEADS * INDEX_WIDTH
    loss_grad = tl.load(grad + token)
    weight_I = tl.load(weight + token * INDEX_HEADS + i, mask=i < INDEX_HEADS, other=0.0)
    dq_ID = tl.zeros((BLOCK_I, BLOCK_D), dtype=tl.float32)
    dweight_I = tl.zeros((BLOCK_I,), dtype=tl.float32)
    for start in range(0, TOPK, BLOCK_K):
        inside = start + k < TOPK
        row_K = tl.load(rows + token * TOPK + start + k, mask=inside, other=-1)
        dscore_K = tl.load(dscores + token * TOPK + start + k, mask=inside, other=0.0) * loss_grad
        dot_IK, k_KD = index_dots(at, index_k, row_K, INDEX_HEADS, INDEX_WIDTH, BLOCK_I, BLOCK_D)
        ddot_IK = weight_I[:, None] * dscore_K[None, :]
        if RELU:
            ddot_IK = tl.where(dot_IK > 0, ddot_IK, 0.0)
            dot_IK = tl.maximum(dot_IK, 0.0)
        dweight_I += tl.sum(dscore_K[None, :] * dot_IK, axis=1)
        dq_ID = tl.dot(ddot_IK.to(k_KD.dtype), k_KD, dq_ID, input_precision="ieee")
    dq_at = dq + token * INDEX_HEADS * INDEX_WIDTH + i[:, None] * INDEX_WIDTH + d[None, :]
    tl.store(dq_at, dq_ID.to(dq.dtype.element_ty), mask=(i < INDEX_HEADS)[:, None] & (d < INDEX_WIDTH)[None, :])
    tl.store(dweight + token * INDEX_HEADS + i, dweight_I, mask=i < INDEX_HEADS)


@triton.jit
def kl_backward_keys(
    grad, dscores, index_q, index_k, weight, pairs, starts, dk,
    INDEX_HEADS: tl.constexpr, INDEX_WIDTH: tl.constexpr, TOPK: tl.constexpr, RELU: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The gradient of one index key per program; its `pairs` start at ``starts[key]``."""
    key = tl.program_id(0).to(tl.int64)
    i, d = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_D)
    inside = d < INDEX_WIDTH
    k_D = tl.load(index_k + key * INDEX_WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    dk_D = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for place in range(tl.load(starts + key), tl.load(starts + key + 1)):
        pair = tl.load(pairs + place)
        token = pair // TOPK
        q_at = index_q + (token * INDEX_HEADS + i[:, None]) * INDEX_WIDTH + d[None, :]
        q_ID = tl.load(q_at, mask=(i < INDEX_HEADS)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        weight_I = tl.load(weight + token * INDEX_HEADS + i, mask=i < INDEX_HEADS, other=0.0)
        ddot_I = weight_I * (tl.load(dscores + pair) * tl.load(grad + token))
        if RELU:
            ddot_I = tl.where(tl.sum(q_ID * k_D[None, :], axis=1) > 0, ddot_I, 0.0)
        dk_D += tl.sum(ddot_I[:, None] * q_ID, axis=0)
    tl.store(dk + key * INDEX_WIDTH + d, dk_D.to(dk.dtype.element_ty), mask=inside)


def index_sizes(index_q_TID: Tensor, rows_TK: Tensor, relu: bool) -> dict[str, int]:
    """Returns the constants of kernels that read index queries; each side of a product must be at least 16."""
    heads, width = index_q_TID.shape[1:]
    blocks = {"BLOCK_I": power_of_two(heads, 16), "BLOCK_D": power_of_two(width, 16)}
    return {"INDEX_HEADS": heads, "INDEX_WIDTH": width, "TOPK": rows_TK.shape[1], "RELU": relu, **blocks}


@torch.library.custom_op("arcforge_cuda::indexer_kl", mutates_args=())
def _forward(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, rows_TK: Tensor, scale: float, relu: bool
) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token, and the gradients of its index scores [T, K]."""
    check(q_THC, kv_SC, q_TID, k_SD, w_TI, rows_TK)
    q_THC, kv_SC, q_TID, k_SD, w_TI, rows_TK = (x.contiguous() for x in (q_THC, kv_SC, q_TID, k_SD, w_TI, rows_TK))
    (tokens, heads, width), topk = q_THC.shape, rows_TK.shape[1]
    lse_TH, loss_T = w_TI.new_empty(tokens, heads), w_TI.new_empty(tokens)
    target_TK, scores_TK = w_TI.new_empty(rows_TK.shape), w_TI.new_empty(rows_TK.shape)
    if tokens:
        fewest, block = power_of_two(heads, 16), power_of_two(topk)
        sums, tiles = ({**x, "BLOCK_H": min(x["BLOCK_H"], fewest)} for x in (tuned("kl_sums"), tuned("kl_tiles")))
        entries = {"HEADS": heads, "WIDTH": width}
        kl_sums[(tokens, -(-heads // sums["BLOCK_H"]))](
            q_THC, kv_SC, rows_TK, lse_TH, scale, **entries, TOPK=topk, **sums
        )
        kl_tiles[(tokens, -(-topk // tiles["BLOCK_K"]))](
            q_THC, kv_SC, q_TID, k_SD, w_TI, rows_TK, lse_TH, target_TK, scores_TK, scale, **entries,
            **index_sizes(q_TID, rows_TK, relu), **tiles,
        )  # fmt: skip
        kl_rows[(tokens,)](target_TK, scores_TK, loss_T, TOPK=topk, BLOCK_K=block, num_warps=row_warps(block))
    return loss_T, scores_TK


@torch.library.custom_op("arcforge_cuda::indexer_kl_backward", mutates_args=())
def _backward(
    grad_T: Tensor, dscores_TK: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, rows_TK: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of index queries, keys and weights."""
    given = [x.contiguous() for x in (grad_T, dscores_TK, q_TID, k_SD, w_TI)]
    rows_TK, sizes = rows_TK.contiguous(), index_sizes(q_TID, rows_TK, relu)
    dq_TID, dk_SD, dw_TI = (torch.empty_like(x) for x in given[2:])
    if len(q_TID):
        kl_backward_queries[(len(q_TID),)](*given, rows_TK, dq_TID, dw_TI, **sizes, **tuned("kl_backward_queries"))
    if len(k_SD):
        pairs = pairs_by_key(rows_TK, len(k_SD))
        kl_backward_keys[(len(k_SD),)](*given, *pairs, dk_SD, **sizes, **tuned("kl_backward_keys"))
    return dq_TID, dk_SD, dw_TI


register(_forward, _backward)


def indexer_kl(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, indices_TK: Tensor, cu_query: Tensor,
    cu_key: Tensor, scale: float, use_relu: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.indexer_kl`."""
    rows_TK, kv_SC = key_rows(indices_TK, cu_query, cu_key), kv_SC.detach().to(q_THC.dtype)
    k_SD, w_TI = k_SD.to(q_TID.dtype), w_TI.float()
    loss_T: Tensor = _forward(q_THC.detach(), kv_SC, q_TID, k_SD, w_TI, rows_TK, scale, use_relu)[0]
    return loss_T.sum()
