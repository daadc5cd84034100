"""Index scores, head sums and the selection in C++: many queries by panels of keys, few as keys are read.

Shapes: T query tokens, S keys, I index heads, D index head size, K top-k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.quant import SCALE_BYTES, wide_rows
from arcforge_core.ops.reference import laid_out
from arcforge_hw.cpu.native import (
    POINTER,
    SIZE,
    check_segments,
    check_shape,
    direct,
    function,
    page_table,
    pointers,
    suffix,
)

ARGUMENTS = (*[POINTER] * 5, SIZE, POINTER, *[SIZE] * 6, POINTER, SIZE)


def _select(
    q_TID: Tensor,
    k_SD: Tensor,
    w_TI: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    topk: int,
    use_relu: bool,
    pages: Pages | None = None,
) -> Tensor:
    tokens, heads, width = q_TID.shape
    check_shape("k_SD", k_SD, len(k_SD), width + (SCALE_BYTES if k_SD.dtype == torch.int8 else 0))
    check_shape("w_TI", w_TI, tokens, heads)
    check_segments(cu_query, cu_key, tokens, len(k_SD), pages)
    if k_SD.dtype not in (torch.float32, torch.bfloat16, torch.int8):
        k_SD = k_SD.float()
    selected_TK = torch.empty(tokens, topk, dtype=torch.int64)
    tensors = [x.contiguous() for x in (q_TID.float(), k_SD, w_TI.float(), cu_query.int(), cu_key.int())]
    function(f"arcforge_index_{suffix(k_SD.dtype)}", ARGUMENTS)(
        *pointers(*tensors), len(cu_query) - 1, *page_table(pages), heads, width, topk, use_relu,
        selected_TK.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return selected_TK


@torch.library.custom_op("arcforge_native::indexer_topk", mutates_args=())
def _indexer_topk(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool
) -> Tensor:
    return _select(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu)


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
    pages: Pages | None = None,
) -> Tensor:
    """See `arcforge_core.ops.reference.indexer_topk`."""
    q_TID, k_SD, w_TI = q_TID.detach(), k_SD.detach(), w_TI.detach()
    if direct(q_TID, k_SD, w_TI):
        return _select(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu, pages)
    k_SD = wide_rows(laid_out(k_SD, cu_key, pages))
    selected_TK: Tensor = _indexer_topk(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu)
    return selected_TK
