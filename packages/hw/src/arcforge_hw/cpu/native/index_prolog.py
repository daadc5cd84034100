"""The lightning indexer after its query projection in one C++ call.

Shapes: T tokens, D hidden, J rows of all heads, I index heads, K index head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.fused import served, tables

_function = native.by_dtype("index_prolog", "11p 5i d i")


def index_prolog(
    x_TD: Tensor, q_TJ: Tensor, wk_KD: Tensor, norm_K: Tensor, norm_bias_K: Tensor, weights_ID: Tensor, cos_TF: Tensor,
    sin_TF: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See `arcforge_core.ops.reference.index_prolog`."""
    (tokens, hidden), heads, width, rotary = x_TD.shape, len(weights_ID), len(wk_KD), 2 * cos_TF.shape[1]
    given = (x_TD, q_TJ, wk_KD, norm_K, norm_bias_K, weights_ID)
    if not served(x_TD, hidden):
        return reference.index_prolog(*given, cos_TF, sin_TF, eps)
    native.check_dtypes(*given)
    native.check_shape("q_TJ", q_TJ, tokens, heads * width)
    native.check_shape("wk_KD", wk_KD, width, hidden)
    native.check_shape("norm_K", norm_K, width)
    native.check_shape("norm_bias_K", norm_bias_K, width)
    native.check_shape("weights_ID", weights_ID, heads, hidden)
    if rotary > width:
        raise ValueError(f"cos_TF rotates {rotary} values: must be at most the index head size {width}")
    q_TIK, key_TK, w_TI = (x_TD.new_empty(tokens, *shape) for shape in ((heads, width), (width,), (heads,)))
    tensors = [x.contiguous() for x in (*given, *tables(cos_TF, sin_TF, tokens, x_TD.dtype))]
    _function(x_TD.dtype)(
        *native.pointers(*tensors, q_TIK, key_TK, w_TI),
        tokens,
        hidden,
        heads,
        width,
        rotary,
        eps,
        torch.get_num_threads(),
    )
    return q_TIK, key_TK, w_TI
