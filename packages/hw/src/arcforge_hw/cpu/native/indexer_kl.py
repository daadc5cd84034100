"""The indexer's loss over selected keys in C++: closed-form gradients, sums in the order of the queries.

Shapes: T query tokens, S keys, H heads, C latent plus rope, I index heads, D index head size, K selected keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu import native
from arcforge_hw.torch_ops.indexer_kl import register
from arcforge_hw.torch_ops.sparse_mla import key_rows

_indexer_kl = native.by_dtype("indexer_kl", "8p 7i d 2i")
_indexer_kl_backward = native.by_dtype("indexer_kl_backward", "9p 7i")


@torch.library.custom_op("arcforge_native::indexer_kl", mutates_args=())
def _forward(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, rows_TK: Tensor, scale: float, relu: bool
) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token, and the gradients of its index scores [T, K]."""
    run = _indexer_kl(q_THC.dtype)
    native.check_dtypes(q_THC, kv_SC, q_TID, k_SD)
    native.check_rows(rows_TK, len(kv_SC))
    tokens, keys = len(q_THC), len(kv_SC)
    native.check_shape("kv_SC", kv_SC, keys, q_THC.shape[-1])
    native.check_shape("q_TID", q_TID, tokens, *q_TID.shape[1:])
    native.check_shape("k_SD", k_SD, keys, q_TID.shape[-1])
    native.check_shape("w_TI", w_TI, tokens, q_TID.shape[1])
    native.check_shape("indices_TK", rows_TK, tokens, rows_TK.shape[-1])
    inputs = [x.contiguous() for x in (q_THC, kv_SC, q_TID, k_SD, w_TI, rows_TK)]
    loss_T, dscores_TK = w_TI.new_empty(len(q_THC)), w_TI.new_empty(rows_TK.shape)
    (heads, width), (index_heads, index_width) = q_THC.shape[1:], q_TID.shape[1:]
    run(
        *native.pointers(*inputs, loss_T, dscores_TK),
        tokens, keys, heads, rows_TK.shape[1], width, index_heads, index_width, scale, relu,
        torch.get_num_threads(),
    )  # fmt: skip
    return loss_T, dscores_TK


@torch.library.custom_op("arcforge_native::indexer_kl_backward", mutates_args=())
def _backward(
    grad_T: Tensor, dscores_TK: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, rows_TK: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of index queries, keys and weights."""
    run = _indexer_kl_backward(q_TID.dtype)
    inputs = [x.contiguous() for x in (grad_T, dscores_TK, q_TID, k_SD, w_TI, rows_TK)]
    (tokens, heads, width), wide = q_TID.shape, w_TI.dtype
    dq_TID, dw_TI = inputs[2].new_empty(q_TID.shape), inputs[4].new_empty(w_TI.shape)
    dk_SP = torch.zeros(len(k_SD), native.padded(width, wide), dtype=wide)
    run(
        *native.pointers(*inputs, dq_TID, dk_SP, dw_TI),
        tokens, len(k_SD), rows_TK.shape[1], heads, width, relu, torch.get_num_threads(),
    )  # fmt: skip
    return dq_TID, dk_SP[:, :width].to(k_SD.dtype), dw_TI


register(_forward, _backward)


def indexer_kl(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, indices_TK: Tensor, cu_query: Tensor,
    cu_key: Tensor, scale: float, use_relu: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.indexer_kl`."""
    rows_TK = key_rows(indices_TK, cu_query, cu_key)
    w_TI = w_TI.to(torch.promote_types(q_TID.dtype, torch.float32))
    loss_T: Tensor = _forward(q_THC.detach(), kv_SC.detach(), q_TID, k_SD, w_TI, rows_TK, scale, use_relu)[0]
    return loss_T.sum()
