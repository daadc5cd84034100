"""The indexer's training loss (spec 3.4); its target is the distribution of the attention heads' own weights.

For each query ``KL(p || softmax(I))``, where p is the mean over heads of the attention weights, without gradient, and
I are the index scores: over all visible keys while attention is dense (warm-up; here), over the selected keys
afterwards (the op ``indexer_kl``).

Over all keys, queries are processed in blocks that the backward pass recomputes, so memory grows linearly with the
number of tokens.

Shapes: T tokens of a group, B queries of a block, S visible keys, H heads, K selected keys, C latent plus rope,
I index heads, D index head size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arcforge_attention.dsa.select import IndexInputs
from arcforge_core.contracts.batch import Group
from arcforge_core.ops import reference

SCORES = 1 << 22
"""Maximum number of attention scores of a block."""


def dense_loss(q_THC: Tensor, kv_SC: Tensor, index: IndexInputs, group: Group, scale: float) -> Tensor:
    """Returns the sum over the group's tokens of the KL divergence over all visible keys, fp32 or wider.

    Args:
        q_THC: absorbed queries of the group, without gradient.
        kv_SC: shared entries of its segments, without gradient.
        index: the indexer's inputs, keys contiguous; only these get a gradient.
        group: the segments.
        scale: softmax scale.
    """
    total = index.w_TI.new_zeros(())
    for rows_q, rows_k in reference.segments(group.cu_query, group.cu_key):
        keys, past = rows_k.stop - rows_k.start, (rows_k.stop - rows_k.start) - (rows_q.stop - rows_q.start)
        for rows in _blocks(rows_q, keys * q_THC.shape[1]):
            visible = past + rows.stop - rows_q.start  # keys visible to the block's last query
            seen = slice(rows_k.start, rows_k.start + visible)
            loss: Tensor = checkpoint(
                _dense_block,
                q_THC[rows], kv_SC[seen], index.q_TID[rows], index.k_SD[seen], index.w_TI[rows], scale, index.use_relu,
                use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
            total = total + loss
    return total


def _blocks(rows: slice, scores_per_row: int) -> Iterator[slice]:
    length = max(1, SCORES // scores_per_row)
    for start in range(rows.start, rows.stop, length):
        yield slice(start, min(start + length, rows.stop))


def _dense_block(
    q_BHC: Tensor, kv_SC: Tensor, q_BID: Tensor, k_SD: Tensor, w_BI: Tensor, scale: float, use_relu: bool
) -> Tensor:
    visible_BS = reference.causal_mask(len(q_BHC), len(kv_SC), q_BHC.device)
    target_BS = attention_mass(q_BHC, kv_SC, visible_BS, scale)
    return reference.kl(target_BS, reference.index_scores(q_BID, k_SD, w_BI, use_relu), visible_BS).sum()


def attention_mass(q_BHC: Tensor, kv_SC: Tensor, visible_BS: Tensor, scale: float) -> Tensor:
    """Returns the mean over heads of the attention weights [B, S], without gradient."""
    with torch.no_grad():
        return reference.mean_softmax(torch.einsum("bhc,sc->bhs", q_BHC, kv_SC) * scale, visible_BS)


@torch.no_grad()
def recall(
    q_THC: Tensor, kv_SC: Tensor, index: IndexInputs, group: Group, *, scale: float, topk: int, queries: int
) -> Tensor:
    """Returns the share of the attention mass on the indexer's `topk` best keys.

    The mean over at most `queries` queries, evenly spaced among those that see more than `topk` keys; 1 if no query
    does.
    """
    cu_query, cu_key = group.cu_query.tolist(), group.cu_key.tolist()
    candidates = [
        (row, cu_key[n], cu_key[n + 1] - cu_query[n + 1] + row + 1)  # query row, first key, end of its visible keys
        for n in range(len(cu_query) - 1)
        for row in range(max(cu_query[n], cu_query[n + 1] - (cu_key[n + 1] - cu_key[n]) + topk), cu_query[n + 1])
    ]
    if not candidates:
        return kv_SC.new_ones(())
    shares = []
    for row, start, end in candidates[:: -(-len(candidates) // queries)]:
        rows, keys = slice(row, row + 1), slice(start, end)
        all_1S = torch.ones(1, end - start, dtype=torch.bool, device=kv_SC.device)
        selected_1K = reference.top_keys(index.scores(rows, keys), all_1S, topk)
        shares.append(attention_mass(q_THC[rows], kv_SC[keys], all_1S, scale).gather(1, selected_1K).sum())
    return torch.stack(shares).mean()
