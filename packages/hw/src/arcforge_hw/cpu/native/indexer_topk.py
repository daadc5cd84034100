"""Index scores a block of queries at a time, as a matrix product; head sums and the selection in C++.

Shapes: T query tokens, S keys, I index heads, D index head size, K top-k, B queries of a block, N keys they see.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference import segments
from arcforge_hw.cpu.native import POINTER, SIZE, function, pointers

SCORES = 1 << 22
"""Scores of a block, head by head, at most."""
ARGUMENTS = (POINTER, POINTER, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, POINTER, SIZE)


@torch.library.custom_op("arcforge_native::indexer_topk", mutates_args=())
def _indexer_topk(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool
) -> Tensor:
    select, heads = function("arcforge_select", ARGUMENTS), q_TID.shape[1]
    w_TI = w_TI.float().contiguous()
    selected_TK = torch.empty(len(q_TID), topk, dtype=torch.int64)
    for rows_q, rows_k in segments(cu_query, cu_key):
        k_ND, queries = k_SD[rows_k].float(), rows_q.stop - rows_q.start
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
    with torch.no_grad():
        selected_TK: Tensor = _indexer_topk(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu)
    return selected_TK
