"""The lightning indexer's selection of keys (spec 1.4).

Shapes: T query tokens, S keys, I index heads, D index head size, K selected keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.quant import wide_rows
from arcforge_core.ops.reference.ragged import causal_mask, laid_out, segments


def index_scores(q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, use_relu: bool = True) -> Tensor:
    """Returns lightning-indexer scores [T, S]: sum over index heads of w * ReLU(q . k) (spec 1.4), fp32 or wider."""
    wide = torch.promote_types(q_TID.dtype, torch.float32)
    dots = torch.einsum("tid,sd->tis", q_TID.to(wide), k_SD.to(wide))
    return torch.einsum("ti,tis->ts", w_TI.to(wide), dots.relu() if use_relu else dots)


def indexer_topk(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool = True,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """Selects the visible keys with the highest index scores; ties go to the lower index (exact zeros are common).

    With `pages`, the keys are a cache's rows, and `pages` gives the rows of each segment. Keys of dtype int8 are
    records of `quant.to_records`.

    Returns:
        int64 [T, topk]: key indices in the token's segment, ascending, padded with -1. No gradient.
    """
    k_SD = wide_rows(laid_out(k_SD, cu_key, pages))
    selected = []
    with torch.no_grad():
        for rows_q, rows_k in segments(cu_query, cu_key):
            scores = index_scores(q_TID[rows_q], k_SD[rows_k], w_TI[rows_q], use_relu)
            visible = causal_mask(scores.shape[0], scores.shape[1], scores.device)
            selected.append(top_keys(scores, visible, topk))
    return torch.cat(selected)


def top_keys(scores_TS: Tensor, visible_TS: Tensor, topk: int) -> Tensor:
    """Returns int64 [T, topk]: the visible keys of highest score, ties by lower index, ascending, padded with -1."""
    keys = scores_TS.shape[1]
    scores_TS = scores_TS.masked_fill(~visible_TS, float("-inf"))
    order_TK = torch.sort(scores_TS, dim=-1, descending=True, stable=True).indices[:, :topk]
    order_TK = torch.where(visible_TS.gather(1, order_TK), order_TK, keys).sort(-1).values
    selected_TK = torch.where(order_TK == keys, -1, order_TK)
    return F.pad(selected_TK, (0, topk - selected_TK.shape[1]), value=-1)
