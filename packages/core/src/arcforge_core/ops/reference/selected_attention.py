"""Attention over selected keys, in expanded form.

Shapes: T query tokens, S keys, H heads, G key/value heads (H a multiple of G), K key size, V value size;
in ``indices_TK`` K selected keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference.ragged import segments, selected_mask, wide_softmax


def selected_attention(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float,
) -> Tensor:  # fmt: skip
    """As `attention_varlen`, over selected keys only; `indices_TK` as `indexer_topk` returns them.

    `sparse_mla` for expanded keys and values; cheaper while the keys are only slightly more than a query selects.
    """
    repeat = q_THK.shape[1] // k_SGK.shape[1]
    outs = []
    for rows_q, rows_k in segments(cu_query, cu_key):
        k, v = (x[rows_k].repeat_interleave(repeat, dim=1) for x in (k_SGK, v_SGV))
        mask_TS = selected_mask(indices_TK[rows_q], len(k))
        scores = torch.einsum("thk,shk->hts", q_THK[rows_q], k) * scale
        probs = wide_softmax(scores.masked_fill(~mask_TS, float("-inf")))
        outs.append(torch.einsum("hts,shv->thv", probs.to(v.dtype), v))
    return torch.cat(outs)
