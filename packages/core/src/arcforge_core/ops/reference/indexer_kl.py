"""The training loss of the lightning indexer (spec 3.4).

Shapes: T query tokens, S keys, H heads, C latent plus rope size of a cache entry, I index heads, D index head size,
K selected keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.ops.reference.ragged import segments


def kl(target_TS: Tensor, scores_TS: Tensor, visible_TS: Tensor) -> Tensor:
    """Returns each row's ``KL(target || softmax(scores))`` over visible keys; its gradient is softmax - target."""
    hidden = scores_TS.masked_fill(~visible_TS, float("-inf"))
    logs_TS = hidden.log_softmax(-1).masked_fill(~visible_TS, 0.0)  # 0 * -inf would be NaN
    return (torch.xlogy(target_TS, target_TS) - target_TS * logs_TS).sum(-1)


@torch.no_grad()
def mean_softmax(scores_THS: Tensor, visible_TS: Tensor) -> Tensor:
    """Returns the mean over heads of the attention weights [T, S], without gradient."""
    hidden = scores_THS.masked_fill(~visible_TS[:, None], float("-inf"))
    return hidden.softmax(-1, dtype=torch.promote_types(scores_THS.dtype, torch.float32)).mean(1)


def indexer_kl(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, indices_TK: Tensor, cu_query: Tensor,
    cu_key: Tensor, scale: float, use_relu: bool = True,
) -> Tensor:  # fmt: skip
    """Compares index scores of selected keys with the attention weights of the same keys (spec 3.4).

    Args:
        q_THC, kv_SC, scale: absorbed queries, entries and softmax scale of `sparse_mla`; they get no gradient.
        q_TID, k_SD, w_TI, use_relu: arguments of `index_scores`.
        indices_TK: key indices in the token's segment, without duplicates, padded with -1; at least one per token.
        cu_query, cu_key: segments.

    Returns:
        Scalar, fp32 or wider: the sum over tokens of ``KL(p || softmax(scores))``, where p is the mean over heads of
        the attention weights. Vendors fuse the loss with its gradient, which only a sum allows.
    """
    losses = [
        indexer_kl_of_rows(q_THC[q], kv_SC[k], q_TID[q], k_SD[k], w_TI[q], indices_TK[q], scale, use_relu)
        for q, k in segments(cu_query, cu_key)
    ]
    return torch.cat(losses).sum()


def indexer_kl_of_rows(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, rows_TK: Tensor, scale: float,
    use_relu: bool,
) -> Tensor:  # fmt: skip
    """Returns the loss [T] of tokens whose selected keys are given as rows of `kv`, padded with -1."""
    there_TK, some_TK = rows_TK >= 0, rows_TK.clamp(min=0)
    kv_TKC, k_TKD = F.embedding(some_TK, kv_SC.detach()), F.embedding(some_TK, k_SD)
    target_TK = mean_softmax(torch.einsum("thc,tkc->thk", q_THC.detach(), kv_TKC) * scale, there_TK)
    dots_TIK = torch.einsum("tid,tkd->tik", q_TID.to(target_TK.dtype), k_TKD.to(target_TK.dtype))
    scores_TK = torch.einsum("ti,tik->tk", w_TI.to(target_TK.dtype), dots_TIK.relu() if use_relu else dots_TIK)
    return kl(target_TK, scores_TK, there_TK)
