"""Attention to selected keys with the others masked, in tiles of queries that the backward pass recomputes.

Shapes: T query tokens, S keys, H heads, G key/value heads, K key size, V value size, B queries of a tile, N keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_hw.torch_ops import block_values

SCORES = 1 << 21
"""Maximum number of scores of a tile, over all heads (`block_values`)."""


def selected_attention(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.selected_attention`."""
    outs = []
    for rows_q, rows_k in reference.segments(cu_query, cu_key):
        keys = rows_k.stop - rows_k.start
        length = max(1, block_values(SCORES, q_THK.device) // (q_THK.shape[1] * keys))
        for start in range(rows_q.start, rows_q.stop, length):
            rows = slice(start, min(start + length, rows_q.stop))
            out_BHV: Tensor = checkpoint(
                reference.selected_attention,
                q_THK[rows], k_SGK[rows_k], v_SGV[rows_k], indices_TK[rows], cumulative([rows.stop - rows.start]),
                cumulative([keys]), scale,
                use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
            outs.append(out_BHV)
    return torch.cat(outs)
