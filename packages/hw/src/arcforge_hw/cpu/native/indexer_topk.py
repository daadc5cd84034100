"""Index scores, head sums and the selection in C++: many queries by panels of keys, few as keys are read.

Shapes: T query tokens, S keys, I index heads, D index head size, K top-k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu.native import POINTER, SIZE, check_segments, check_shape, direct, function, pointers, suffix

ARGUMENTS = (*[POINTER] * 5, *[SIZE] * 5, POINTER, SIZE)


def _select(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool
) -> Tensor:
    tokens, heads, width = q_TID.shape
    check_shape("k_SD", k_SD, len(k_SD), width)
    check_shape("w_TI", w_TI, tokens, heads)
    check_segments(cu_query, cu_key, tokens, len(k_SD))
    if k_SD.dtype not in (torch.float32, torch.bfloat16):
        k_SD = k_SD.float()
    selected_TK = torch.empty(tokens, topk, dtype=torch.int64)
    tensors = [x.contiguous() for x in (q_TID.float(), k_SD, w_TI.float(), cu_query.int(), cu_key.int())]
    function(f"arcforge_index_{suffix(k_SD.dtype)}", ARGUMENTS)(
        *pointers(*tensors), len(cu_query) - 1, heads, width, topk, use_relu, selected_TK.data_ptr(),
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
    selected_TK: Tensor = run(q_TID.detach(), k_SD.detach(), w_TI.detach(), cu_query, cu_key, topk, use_relu)
    return selected_TK
