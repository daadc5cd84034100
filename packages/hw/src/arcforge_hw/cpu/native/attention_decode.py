"""Attention of few queries with a cache in C++: threads share one query's keys, which are read in place.

Shapes: T query tokens, S keys, H heads, G key/value heads, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_hw.cpu import attention_varlen as tiled
from arcforge_hw.cpu import native

_function = native.by_dtype("attention_decode", "5p i p 2i p 4i d i")


def attention_decode(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.attention_decode`; if a gradient is needed the tiled kernel runs."""
    if not native.direct(q_THK, k_SGK, v_SGV):
        return tiled.attention_decode(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale, pages)
    (heads, width), (keys, groups) = q_THK.shape[1:], k_SGK.shape[:2]
    native.check_dtypes(q_THK, k_SGK, v_SGV)
    native.check_shape("k_SGK", k_SGK, keys, groups, width)
    native.check_shape("v_SGV", v_SGV, keys, groups, v_SGV.shape[-1])
    if heads % groups:
        raise ValueError(f"{heads} heads cannot share {groups} key/value heads evenly")
    native.check_segments(cu_query, cu_key, len(q_THK), keys, pages)
    q_THK, k_SGK, v_SGV = q_THK.contiguous(), k_SGK.contiguous(), v_SGV.contiguous()
    cu_query, cu_key = cu_query.int(), cu_key.int()
    out_THV = q_THK.new_empty(*q_THK.shape[:2], v_SGV.shape[-1])
    _function(q_THK.dtype)(
        *native.pointers(q_THK, k_SGK, v_SGV, cu_query, cu_key), len(cu_query) - 1, *native.page_table(pages),
        *native.pointers(out_THV), heads, groups, width, v_SGV.shape[-1], scale, torch.get_num_threads(),
    )  # fmt: skip
    return out_THV
