"""What the indexer learns from (spec 3.4): how the attention heads themselves spread their weight.

For each query ``KL(p || softmax(I))``, where p is the mean over heads of the attention weights, without gradient, and
I are the index scores: over all visible keys while attention is dense (warm-up), over the selected keys afterwards.

Queries are taken a block at a time and a block is computed again in the backward pass, so that memory grows with the
tokens and not with their square.

Shapes: T the group's tokens, B queries of a block, S visible keys, H heads, K selected keys, C latent plus rope,
I index heads, D index head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    total = index.w_TI.new_zeros(())
    for rows_q, rows_k in reference.segments(group.cu_query, group.cu_key):
        keys, past = rows_k.stop - rows_k.start, (rows_k.stop - rows_k.start) - (rows_q.stop - rows_q.start)
        width = keys if selected_TK is None else selected_TK.shape[1]
        for rows in _blocks(rows_q, width * layer.heads):
            if selected_TK is None:
                visible = past + rows.stop - rows_q.start  # keys that the block's last query sees
                seen = slice(rows_k.start, rows_k.start + visible)
                tensors = (q_THC[rows], kv_SC[seen], index.q_TID[rows], index.k_SD[seen], index.w_TI[rows])
                total = total + _again(_dense_block, layer, *tensors)
            else:
                tensors = (q_THC[rows], kv_SC[rows_k], index.q_TID[rows], index.k_SD[rows_k], index.w_TI[rows])
                total = total + _again(_sparse_block, layer, *tensors, selected_TK[rows])
    return total


def _again(block: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Computes a block now and, instead of keeping what its backward pass needs, then again."""
    loss: Tensor = checkpoint(block, *arguments, use_reentrant=False, preserve_rng_state=False)
    return loss


def _blocks(rows: slice, scores_per_row: int) -> Iterator[slice]:
    length = max(1, SCORES // scores_per_row)
    for start in range(rows.start, rows.stop, length):
        yield slice(start, min(start + length, rows.stop))


def _dense_block(layer: DSA, q_BHC: Tensor, kv_SC: Tensor, q_BID: Tensor, k_SD: Tensor, w_BI: Tensor) -> Tensor:
    visible_BS = reference.causal_mask(len(q_BHC), len(kv_SC), q_BHC.device)
    target_BS = attention_mass(layer, q_BHC, kv_SC, visible_BS)
    scores_BS = reference.index_scores(q_BID, k_SD, w_BI, layer.use_relu)
    return kl(target_BS, scores_BS, visible_BS)


def _sparse_block(
    layer: DSA, q_BHC: Tensor, kv_SC: Tensor, q_BID: Tensor, k_SD: Tensor, w_BI: Tensor, selected_BK: Tensor
) -> Tensor:
    there_BK, rows = selected_BK >= 0, selected_BK.clamp(min=0).flatten()
    kv_BKC = kv_SC.index_select(0, rows).unflatten(0, selected_BK.shape)
    k_BKD = k_SD.index_select(0, rows).unflatten(0, selected_BK.shape)
    scores_BHK = torch.einsum("bhc,bkc->bhk", q_BHC, kv_BKC) * layer.scale
    target_BK = _mean_softmax(scores_BHK, there_BK)
    dots_BIK = torch.einsum("bid,bkd->bik", q_BID.to(w_BI.dtype), k_BKD.to(w_BI.dtype))
    index_BK = torch.einsum("bi,bik->bk", w_BI, dots_BIK.relu() if layer.use_relu else dots_BIK)
    return kl(target_BK, index_BK, there_BK)


def attention_mass(layer: DSA, q_BHC: Tensor, kv_SC: Tensor, visible_BS: Tensor) -> Tensor:
    """Returns the mean over heads of the attention weights [B, S], without gradient."""
    with torch.no_grad():
        return _mean_softmax(torch.einsum("bhc,sc->bhs", q_BHC, kv_SC) * layer.scale, visible_BS)


@torch.no_grad()
def _mean_softmax(scores_BHS: Tensor, visible_BS: Tensor) -> Tensor:
    wide = torch.promote_types(scores_BHS.dtype, torch.float32)
    hidden = scores_BHS.masked_fill(~visible_BS[:, None], float("-inf"))
    return hidden.softmax(-1, dtype=wide).mean(1)


def kl(target_BS: Tensor, scores_BS: Tensor, visible_BS: Tensor) -> Tensor:
    """Returns the sum over queries of ``KL(target || softmax(scores))``; its gradient is softmax(scores) - target."""
    hidden = scores_BS.masked_fill(~visible_BS, float("-inf"))
    logs_BS = hidden.log_softmax(-1).masked_fill(~visible_BS, 0.0)  # 0 * -inf would be NaN
    return (torch.xlogy(target_BS, target_BS) - target_BS * logs_BS).sum()


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
