"""What the indexer learns from (spec 3.4): how the attention heads themselves spread their weight.

For each query ``KL(p || softmax(I))``, where p is the mean over heads of the attention weights, without gradient, and
I are the index scores: over all visible keys while attention is dense (warm-up), over the selected keys afterwards.

Over all keys, queries are taken a block at a time and a block is computed again in the backward pass, so that memory
grows with the tokens and not with their square; over selected keys the op `indexer_kl` sees to that.

Shapes: T the group's tokens, B queries of a block, S visible keys, H heads, K selected keys, C latent plus rope,
I index heads, D index head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arcforge_attention.dsa.select import IndexInputs
from arcforge_core.contracts.batch import Group
from arcforge_core.ops import reference

if TYPE_CHECKING:
    from arcforge_attention.dsa import DSA

SCORES = 1 << 22
"""Attention scores of a block at most."""


def indexer_loss(
    layer: DSA, q_THC: Tensor, kv_SC: Tensor, index: IndexInputs, selected_TK: Tensor | None, group: Group
) -> Tensor:
    """Returns the sum over the group's tokens of the KL divergence, fp32 or wider.

    Args:
        layer: whose heads are the target.
        q_THC: absorbed queries of the group.
        kv_SC: shared entries of its segments.
        index: what the indexer scores with; only this gets a gradient.
        selected_TK: keys to compare over; None compares over all visible keys.
        group: the segments.
    """
    q_THC, kv_SC = q_THC.detach(), kv_SC.detach()
    if selected_TK is not None:
        loss_T: Tensor = layer.indexer_kl(
            q_THC, kv_SC, index.q_TID, index.k_SD, index.w_TI, selected_TK, group.cu_query, group.cu_key,
            layer.scale, layer.use_relu,
        )  # fmt: skip
        return loss_T.sum()
    total = index.w_TI.new_zeros(())
    for rows_q, rows_k in reference.segments(group.cu_query, group.cu_key):
        keys, past = rows_k.stop - rows_k.start, (rows_k.stop - rows_k.start) - (rows_q.stop - rows_q.start)
        for rows in _blocks(rows_q, keys * layer.heads):
            visible = past + rows.stop - rows_q.start  # keys that the block's last query sees
            seen = slice(rows_k.start, rows_k.start + visible)
            loss: Tensor = checkpoint(
                _dense_block,
                layer, q_THC[rows], kv_SC[seen], index.q_TID[rows], index.k_SD[seen], index.w_TI[rows],
                use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
            total = total + loss
    return total


def _blocks(rows: slice, scores_per_row: int) -> Iterator[slice]:
    length = max(1, SCORES // scores_per_row)
    for start in range(rows.start, rows.stop, length):
        yield slice(start, min(start + length, rows.stop))


def _dense_block(layer: DSA, q_BHC: Tensor, kv_SC: Tensor, q_BID: Tensor, k_SD: Tensor, w_BI: Tensor) -> Tensor:
    visible_BS = reference.causal_mask(len(q_BHC), len(kv_SC), q_BHC.device)
    target_BS = attention_mass(layer, q_BHC, kv_SC, visible_BS)
    scores_BS = reference.index_scores(q_BID, k_SD, w_BI, layer.use_relu)
    return reference.kl(target_BS, scores_BS, visible_BS).sum()


def attention_mass(layer: DSA, q_BHC: Tensor, kv_SC: Tensor, visible_BS: Tensor) -> Tensor:
    """Returns the mean over heads of the attention weights [B, S], without gradient."""
    with torch.no_grad():
        return reference.mean_softmax(torch.einsum("bhc,sc->bhs", q_BHC, kv_SC) * layer.scale, visible_BS)


@torch.no_grad()
def recall(layer: DSA, q_THC: Tensor, kv_SC: Tensor, index: IndexInputs, group: Group, queries: int) -> Tensor:
    """Returns the share of the attention mass that the best `layer.topk` keys of the indexer hold.

    The mean over at most `queries` queries, evenly spread over those that see more than `layer.topk` keys; 1 when there
    is none.
    """
    cu_query, cu_key = group.cu_query.tolist(), group.cu_key.tolist()
    candidates = [
        (row, cu_key[n], cu_key[n + 1] - cu_query[n + 1] + row + 1)  # query row, first key, end of its visible keys
        for n in range(len(cu_query) - 1)
        for row in range(max(cu_query[n], cu_query[n + 1] - (cu_key[n + 1] - cu_key[n]) + layer.topk), cu_query[n + 1])
    ]
    if not candidates:
        return kv_SC.new_ones(())
    shares = []
    for row, start, end in candidates[:: -(-len(candidates) // queries)]:
        rows, keys = slice(row, row + 1), slice(start, end)
        all_1S = torch.ones(1, end - start, dtype=torch.bool, device=kv_SC.device)
        scores_1S = reference.index_scores(index.q_TID[rows], index.k_SD[keys], index.w_TI[rows], layer.use_relu)
        selected_1K = reference.top_keys(scores_1S, all_1S, layer.topk)
        shares.append(attention_mass(layer, q_THC[rows], kv_SC[keys], all_1S).gather(1, selected_1K).sum())
    return torch.stack(shares).mean()
