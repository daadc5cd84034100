"""Index scores in Triton, head sums included, a block of queries at a time; torch selects the best keys.

Shapes: T query tokens, S keys, I index heads, D index head size, K top-k, B queries of a block, N keys they see.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.quant import wide_rows
from arcforge_core.ops.reference import laid_out, segments
from arcforge_hw.cuda.launch import check, power_of_two, tuned
from arcforge_hw.torch_ops.indexer_topk import best_keys

SCORES = 1 << 26
"""Maximum number of scores of a block, in fp32."""


@triton.jit
def index_scores(
    q, k, w, out, queries, keys, visible, dim, HEADS: tl.constexpr, RELU: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Scores of some queries and keys per program; query b sees the first ``visible + b`` keys."""
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    has_d = (d < dim)[None, :]
    k_ND = tl.load(k + n[:, None].to(tl.int64) * dim + d[None, :], mask=(n < keys)[:, None] & has_d, other=0.0)
    score_BN = tl.zeros((BLOCK_B, BLOCK_N), dtype=tl.float32)
    for i in range(0, HEADS):
        at_B = b.to(tl.int64) * HEADS + i
        q_BD = tl.load(q + at_B[:, None] * dim + d[None, :], mask=(b < queries)[:, None] & has_d, other=0.0)
        dot_BN = tl.dot(q_BD, tl.trans(k_ND), input_precision="ieee")
        if RELU:
            dot_BN = tl.maximum(dot_BN, 0.0)
        w_B = tl.load(w + at_B, mask=b < queries, other=0.0).to(tl.float32)
        score_BN += w_B[:, None] * dot_BN
    hidden = n[None, :] >= visible + b[:, None]
    at = b[:, None].to(tl.int64) * keys + n[None, :]
    tl.store(out + at, tl.where(hidden, float("-inf"), score_BN), mask=(b < queries)[:, None] & (n < keys)[None, :])


@torch.no_grad()
def indexer_topk(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool = True,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.indexer_topk`."""
    k_SD = wide_rows(laid_out(k_SD, cu_key, pages))
    check(q_TID, k_SD, w_TI)
    heads, dim = q_TID.shape[1:]
    selected_TK = torch.full((len(q_TID), topk), -1, dtype=torch.int64, device=q_TID.device)
    for rows_q, rows_k in segments(cu_query, cu_key):
        queries, past = rows_q.stop - rows_q.start, (rows_k.stop - rows_k.start) - (rows_q.stop - rows_q.start)
        block = max(1, SCORES // (past + queries))
        for start in range(0, queries, block):
            end = min(start + block, queries)
            rows = slice(rows_q.start + start, rows_q.start + end)
            q_BID, w_BI = q_TID[rows].contiguous(), w_TI[rows].contiguous()
            k_ND = k_SD[rows_k.start : rows_k.start + past + end].to(q_TID.dtype).contiguous()
            scores_BN = torch.empty(end - start, past + end, dtype=torch.float32, device=q_TID.device)
            options = tuned("index_scores")
            grid = -(-(end - start) // options["BLOCK_B"]), -(-(past + end) // options["BLOCK_N"])
            index_scores[grid](
                q_BID, k_ND, w_BI, scores_BN, end - start, past + end, past + start + 1, dim, HEADS=heads,
                RELU=use_relu, BLOCK_D=power_of_two(dim, 16), **options,
            )  # fmt: skip
            best_BK = best_keys(scores_BN, topk)
            selected_TK[rows, : best_BK.shape[1]] = best_BK
    return selected_TK
