"""Index scores a block of queries at a time, as a matrix product; head sums and the selection in C++.

The products of a few queries are computed there too, as keys are read.

Shapes: T query tokens, S keys, I index heads, D index head size, K top-k, B queries of a block, N keys they see.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference import segments
from arcforge_hw.cpu.native import POINTER, SIZE, check_dtypes, direct, function, pointers, suffix

SCORES = 1 << 22
"""Scores of a block, head by head, at most."""
FEW_QUERIES = 8
"""Queries of a segment up to which a product of its own costs more than reading the keys."""
ARGUMENTS = (POINTER, POINTER, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, POINTER, SIZE)
FEW_ARGUMENTS = (POINTER, POINTER, POINTER, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, POINTER, SIZE)


def _few(q_TID: Tensor, k_ND: Tensor, w_TI: Tensor, topk: int, use_relu: bool, out_TK: Tensor) -> None:
    """Fills a segment's rows of the result."""
    check_dtypes(q_TID, k_ND)
    q_TID, k_ND = q_TID.contiguous(), k_ND.contiguous()
    run = function(f"arcforge_index_few_{suffix(k_ND.dtype)}", FEW_ARGUMENTS)
    q_at, k_at, w_at, out_at = pointers(q_TID, k_ND, w_TI, out_TK)
    visible = len(k_ND) - len(q_TID) + 1
    run(q_at, k_at, w_at, *q_TID.shape, visible, topk, use_relu, out_at, torch.get_num_threads())


def _select(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool
) -> Tensor:
    select, heads = function("arcforge_select", ARGUMENTS), q_TID.shape[1]
    w_TI = w_TI.float().contiguous()
    selected_TK = torch.empty(len(q_TID), topk, dtype=torch.int64)
    for rows_q, rows_k in segments(cu_query, cu_key):
        k_ND, queries = k_SD[rows_k], rows_q.stop - rows_q.start
        if queries <= FEW_QUERIES:
            _few(q_TID[rows_q], k_ND, w_TI[rows_q], topk, use_relu, selected_TK[rows_q])
            continue
        k_ND = k_ND.float()
        past = len(k_ND) - queries
        block = max(1, SCORES // (heads * len(k_ND)))
        for start in range(0, queries, block):
            end = min(start + block, queries)
            rows = slice(rows_q.start + start, rows_q.start + end)
            seen = past + end
            dots = q_TID[rows].float().flatten(0, 1) @ k_ND[:seen].mT
            dots_at, weights_at, out_at = pointers(dots, w_TI[rows], selected_TK[rows])
            select(
                dots_at, weights_at, end - start, heads, seen, past + start + 1, topk, use_relu, out_at,
                torch.get_num_threads(),
            )  # fmt: skip
    return selected_TK


_indexer_topk = torch.library.custom_op("arcforge_native::indexer_topk", _select, mutates_args=())


@_indexer_topk.register_fake
def _(q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool) -> Tensor:
    return q_TID.new_empty(q_TID.shape[0], topk, dtype=torch.int64)


def indexer_topk(
    q_TID: Tensor,
    k_SD: Tensor,
    w_TI: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    topk: int,
    use_relu: bool = True,
) -> Tensor:
    """See `arcforge_core.ops.reference.indexer_topk`."""
    run = _select if direct(q_TID, k_SD, w_TI) else _indexer_topk
    with torch.no_grad():
        selected_TK: Tensor = run(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu)
    return selected_TK
