"""Index scores and their best keys, in blocks of queries: the full scores never exist.

`torch.topk` guarantees no order among equal scores, and ReLU makes exact zeros common. It returns one key more than
needed: if the last two differ the selection is unique, otherwise ties are filled from the lowest index.

Shapes: T query tokens, S keys, I index heads, D index head size, K top-k, B queries of a block, N keys they see.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.quant import wide_rows
from arcforge_core.ops.reference import laid_out, segments
from arcforge_hw.torch_ops import block_values

SCORES = 1 << 22
"""Maximum number of scores of a block, counted per head (`block_values`)."""


@torch.library.custom_op("arcforge_torch::indexer_topk", mutates_args=())
def _indexer_topk(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool
) -> Tensor:
    wide = torch.promote_types(q_TID.dtype, torch.float32)
    heads = q_TID.shape[1]
    selected_TK = torch.full((len(q_TID), topk), -1, dtype=torch.int64, device=q_TID.device)
    for rows_q, rows_k in segments(cu_query, cu_key):
        k_SD_segment, queries = k_SD[rows_k].to(wide), rows_q.stop - rows_q.start
        past = len(k_SD_segment) - queries
        block = max(1, block_values(SCORES, q_TID.device) // (heads * len(k_SD_segment)))
        for start in range(0, queries, block):
            end = min(start + block, queries)
            rows = slice(rows_q.start + start, rows_q.start + end)
            q_BID, k_ND = q_TID[rows].to(wide), k_SD_segment[: past + end]
            dots_BIN = (q_BID.flatten(0, 1) @ k_ND.mT).unflatten(0, (-1, heads))
            dots_BIN = dots_BIN.relu_() if use_relu else dots_BIN
            scores_BN = torch.bmm(w_TI[rows, None].to(wide), dots_BIN)[:, 0]
            own = scores_BN[:, past + start :]  # the block's own keys are causal, earlier ones are visible to all
            own.masked_fill_(torch.ones(own.shape, dtype=torch.bool, device=own.device).triu(1), float("-inf"))
            best_BK = best_keys(scores_BN, topk)
            selected_TK[rows, : best_BK.shape[1]] = best_BK
    return selected_TK


@_indexer_topk.register_fake
def _(q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool) -> Tensor:
    return q_TID.new_empty(q_TID.shape[0], topk, dtype=torch.int64)


def best_keys(scores_BN: Tensor, topk: int) -> Tensor:
    """Returns the keys of highest score, ties by lower index, ascending, padded with -1; hidden scores are -inf."""
    keys = scores_BN.shape[1]
    values, order = scores_BN.topk(min(topk + 1, keys))
    kept_BK = order[:, :topk].masked_fill(values[:, :topk] == float("-inf"), keys).sort(-1).values
    if keys > topk:
        unsure_B = (values[:, topk - 1] == values[:, topk]) & (values[:, topk] > float("-inf"))
        rows = unsure_B.nonzero().flatten()  # a device is waited for here, and not again where there are no ties
        if len(rows):
            kept_BK[rows] = _fill_ties(scores_BN[rows], values[rows, topk - 1 : topk], topk)
    return kept_BK.masked_fill(kept_BK == keys, -1)


def _fill_ties(scores_BN: Tensor, last_B1: Tensor, topk: int) -> Tensor:
    """Returns the keys above the last score, and the first keys equal to it."""
    above_BN, equal_BN = scores_BN > last_B1, scores_BN == last_B1
    needed_B1 = topk - above_BN.sum(1, keepdim=True)
    chosen_BN = above_BN | (equal_BN & (equal_BN.cumsum(1, dtype=torch.int32) <= needed_B1))
    return chosen_BN.nonzero()[:, 1].view(-1, topk)


def indexer_topk(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool = True,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.indexer_topk`."""
    k_SD = wide_rows(laid_out(k_SD, cu_key, pages))
    with torch.no_grad():
        selected_TK: Tensor = _indexer_topk(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu)
    return selected_TK
