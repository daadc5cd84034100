"""Sliding-window attention.

Shapes: T query tokens, S keys, H heads, G key/value heads (H a multiple of G), K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference.ragged import segments, wide_softmax, window_mask


def window_attention(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, window: int, scale: float
) -> Tensor:
    """As `attention_varlen`, over the last `window` visible keys of each query, including its own.

    A segment may contain all keys of its past or only the last ``window - 1``.
    """
    repeat = q_THK.shape[1] // k_SGK.shape[1]
    outs = []
    for rows_q, rows_k in segments(cu_query, cu_key):
        q, k, v = q_THK[rows_q], k_SGK[rows_k], v_SGV[rows_k]
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
        scores = torch.einsum("thk,shk->hts", q, k) * scale
        mask = window_mask(q.shape[0], k.shape[0], window, q.device)
        probs = wide_softmax(scores.masked_fill(~mask, float("-inf")))
        outs.append(torch.einsum("hts,shv->thv", probs.to(v.dtype), v))
    return torch.cat(outs)
