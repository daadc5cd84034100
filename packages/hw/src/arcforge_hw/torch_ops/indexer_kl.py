"""The indexer's loss over selected keys a block of queries at a time, each computed again in the backward pass.

Nothing is kept that grows with the selected keys, so that memory grows with the tokens alone.

Shapes: T query tokens, S keys, H heads, C latent plus rope, I index heads, D index head size, K selected keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arcforge_core.ops.reference import indexer_kl_of_rows
from arcforge_hw.torch_ops import block_values
from arcforge_hw.torch_ops.sparse_mla import key_rows

SCORES = 1 << 22
"""Attention scores of a block at most (`block_values`)."""


def indexer_kl(
    q_THC: Tensor,
    kv_SC: Tensor,
    q_TID: Tensor,
    k_SD: Tensor,
    w_TI: Tensor,
    indices_TK: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    scale: float,
    use_relu: bool = True,
) -> Tensor:
    """See `arcforge_core.ops.reference.indexer_kl`."""
    rows_TK = key_rows(indices_TK, cu_query, cu_key)
    length = max(1, block_values(SCORES, q_THC.device) // (rows_TK.shape[1] * q_THC.shape[1]))
    losses = []
    for parts in zip(*(x.split(length) for x in (q_THC, q_TID, w_TI, rows_TK)), strict=True):
        q_BHC, q_BID, w_BI, rows_BK = parts
        loss_B: Tensor = checkpoint(
            indexer_kl_of_rows, q_BHC, kv_SC, q_BID, k_SD, w_BI, rows_BK, scale, use_relu,
            use_reentrant=False, preserve_rng_state=False,
        )  # fmt: skip
        losses.append(loss_B)
    return torch.cat(losses)
