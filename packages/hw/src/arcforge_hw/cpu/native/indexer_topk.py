"""Index scores, head sums and selection in C++: many queries by panels of keys, few queries in one pass over the keys.

Shapes: T query tokens, S keys, I index heads, D index head size, K top-k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.quant import SCALE_BYTES, wide_rows
from arcforge_core.ops.reference import laid_out
from arcforge_hw.cpu import native

_function = native.by_dtype("index", "5p i p 6i p i")


def _select(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    tokens, heads, width = q_TID.shape
    native.check_shape("k_SD", k_SD, len(k_SD), width + (SCALE_BYTES if k_SD.dtype == torch.int8 else 0))
    native.check_shape("w_TI", w_TI, tokens, heads)
    native.check_segments(cu_query, cu_key, tokens, len(k_SD), pages)
    if k_SD.dtype not in (torch.float32, torch.bfloat16, torch.int8):
        k_SD = k_SD.float()
    selected_TK = torch.empty(tokens, topk, dtype=torch.int64)
    tensors = [x.contiguous() for x in (q_TID.float(), k_SD, w_TI.float(), cu_query.int(), cu_key.int())]
    _function(k_SD.dtype)(
        *native.pointers(*tensors), len(cu_query) - 1, *native.page_table(pages), heads, width, topk, use_relu,
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
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool = True,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.indexer_topk`."""
    q_TID, k_SD, w_TI = q_TID.detach(), k_SD.detach(), w_TI.detach()
    if native.direct(q_TID, k_SD, w_TI):
        return _select(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu, pages)
    k_SD = wide_rows(laid_out(k_SD, cu_key, pages))
    selected_TK: Tensor = _indexer_topk(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu)
    return selected_TK
