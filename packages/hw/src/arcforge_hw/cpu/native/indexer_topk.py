"""Index scores, head sums and the selection in C++: many queries by panels of keys, few as keys are read.

Shapes: T query tokens, S keys, I index heads, D index head size, K top-k, N keys of a segment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference import segments
from arcforge_hw.cpu.native import POINTER, SIZE, check_shape, direct, function, pointers, suffix

FEW_QUERIES = 8
"""Queries of a segment up to which reading the keys is the work, and laying them out as panels a waste."""
ARGUMENTS = (POINTER, POINTER, POINTER, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, POINTER, SIZE)


def _select(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool
) -> Tensor:
    tokens, heads, width = q_TID.shape
    check_shape("k_SD", k_SD, len(k_SD), width)
    check_shape("w_TI", w_TI, tokens, heads)
    query_N, key_N = cu_query.diff(), cu_key.diff()
    if int(cu_query[-1]) != tokens or int(cu_key[-1]) > len(k_SD) or bool((key_N < query_N).any()):
        lengths = f"{cu_query.tolist()} and {cu_key.tolist()}"
        raise ValueError(f"segments of {lengths}: {tokens} tokens, {len(k_SD)} keys, and no segment has fewer keys")
    q_TID, w_TI = q_TID.float().contiguous(), w_TI.float().contiguous()
    selected_TK = torch.empty(len(q_TID), topk, dtype=torch.int64)
    for rows_q, rows_k in segments(cu_query, cu_key):
        k_ND, queries = k_SD[rows_k].contiguous(), rows_q.stop - rows_q.start
        name = f"arcforge_index_few_{suffix(k_ND.dtype)}"
        if queries > FEW_QUERIES:
            name, k_ND = "arcforge_index", k_ND.float()
        q_at, k_at, w_at, out_at = pointers(q_TID[rows_q], k_ND, w_TI[rows_q], selected_TK[rows_q])
        visible = len(k_ND) - queries + 1
        function(name, ARGUMENTS)(
            q_at, k_at, w_at, queries, *q_TID.shape[1:], visible, topk, use_relu, out_at, torch.get_num_threads()
        )
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
