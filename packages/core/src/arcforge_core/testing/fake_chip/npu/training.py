"""``npu_sparse_lightning_indexer_grad_kl_loss``: the indexer's loss over selected keys, with its gradients.

Shapes: T query tokens, S keys, H heads, C latent and rotated part, I index heads, D index head size, K selected keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference import kl
from arcforge_core.testing.fake_chip.npu.attention import INDEX, LATENT, ROTATED
from arcforge_core.testing.fake_chip.npu.layouts import EVER, HALF, contiguous, selected, spans
from arcforge_core.testing.fake_chip.vendor import need

HEADS, INDEX_HEADS = (32, 64, 128), (8, 16, 32, 64)
COUNTS = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192)
"""Selected keys; the document says 3081 for 3072."""


def sparse_lightning_indexer_grad_kl_loss(
    query: Tensor, key: Tensor, query_index: Tensor, key_index: Tensor, weights: Tensor, sparse_indices: Tensor,
    softmax_max: Tensor, softmax_sum: Tensor, scale_value: float, *, query_rope: Tensor | None = None,
    key_rope: Tensor | None = None, actual_seq_qlen: list[int] | None = None,
    actual_seq_klen: list[int] | None = None, layout: str = "BSND", sparse_mode: int = 3, pre_tokens: int = EVER,
    next_tokens: int = EVER, sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query_index, key_index and weights, and the loss [1] summed over all tokens.

    The softmax results are those of ``npu_sparse_flash_attention`` for the same keys, float32 as it gives them; the
    document's table says half precision, its example float32.
    """
    op = "npu_sparse_lightning_indexer_grad_kl_loss"
    need(layout == "TND", op, "this chip has layout=TND only")
    need(sparse_mode == 3 and sinks is None, op, "this chip has sparse_mode=3 without sinks only")
    need(query_rope is not None and key_rope is not None, op, "query_rope and key_rope are required")
    assert query_rope is not None and key_rope is not None
    given = (query, key, query_index, key_index, query_rope, key_rope)
    need(query.dtype in HALF and all(x.dtype == query.dtype for x in given), op, "all must be bfloat16 or float16")
    need(weights.dtype in (query.dtype, torch.float32), op, "weights must have query's dtype or float32")
    need(softmax_max.dtype == softmax_sum.dtype == torch.float32, op, "softmax results must be float32")
    need(query.shape[1] in HEADS and query_index.shape[1] in INDEX_HEADS, op, f"heads must be of {HEADS}")
    need(query.shape[2] == key.shape[2] == LATENT and query_rope.shape[2] == key_rope.shape[2] == ROTATED, op,
         f"D must be {LATENT} and {ROTATED}")  # fmt: skip
    need(query_index.shape[2] == key_index.shape[2] == INDEX, op, f"D of the indexer must be {INDEX}")
    need(weights.shape == query_index.shape[:2], op, "weights must be [T, N]")
    need(sparse_indices.dtype == torch.int32, op, "sparse_indices must be int32")
    need(sparse_indices.ndim == 3 and sparse_indices.shape[2] in COUNTS, op, f"K must be of {COUNTS}")
    need(softmax_max.shape == softmax_sum.shape == (1, *query.shape[:2]), op, "softmax results must be [1, T, N]")
    contiguous(op, query=query, key=key, query_index=query_index, key_index=key_index, weights=weights,
               sparse_indices=sparse_indices, query_rope=query_rope, key_rope=key_rope)  # fmt: skip
    need(actual_seq_qlen is not None and actual_seq_klen is not None, op, "lengths are required for layout TND")
    rows_q = spans(op, "actual_seq_qlen", actual_seq_qlen or [], len(query))
    rows_k = spans(op, "actual_seq_klen", actual_seq_klen or [], len(key))
    need(len(rows_q) == len(rows_k) and len(rows_q) <= 256, op, "up to 256 sequences of queries and of keys")
    q_THC, kv_SC = (torch.cat(x, -1).float() for x in ((query, query_rope), (key[:, 0], key_rope[:, 0])))
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [x.detach().float().clone().requires_grad_() for x in (query_index, key_index[:, 0], weights)]
        q_TID, k_SD, w_TI = leaves
        loss = q_TID.new_zeros(())
        for (start, end), (first, last) in zip(rows_q, rows_k, strict=True):
            need(end - start <= 8192 and last - first <= 131072, op, "up to 8K queries and 128K keys of a sequence")
            index_TK, there_TK = selected(op, sparse_indices[start:end, 0], last - first, causal=True)
            row_TK = index_TK.clamp(min=0) + first
            scores = torch.einsum("thc,tkc->thk", q_THC[start:end], kv_SC[row_TK]) * scale_value
            p = (scores - softmax_max[0, start:end, :, None]).exp() / softmax_sum[0, start:end, :, None]
            p_TK = p.sum(1).masked_fill(~there_TK, 0.0)
            p_TK = (p_TK / p_TK.sum(-1, keepdim=True)).detach().clone()
            dots_TIK = torch.einsum("tid,tkd->tik", q_TID[start:end], k_SD[row_TK])
            scores_TK = torch.einsum("ti,tik->tk", w_TI[start:end], dots_TIK.relu())
            loss = loss + kl(p_TK, scores_TK, there_TK).sum()
        dq, dk, dw = torch.autograd.grad(loss, leaves)
    return dq.to(query.dtype), dk[:, None].to(query.dtype), dw.to(weights.dtype), loss.detach()[None]
