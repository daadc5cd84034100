"""Absorbed attention of few queries over a whole cache in Triton: programs share a query's keys, then join the parts.

Shapes: T query tokens, S keys, P parts of a query's keys, H heads of a program, K keys of a tile, L latent, R rope
part, C = L + R.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops import reference
from arcforge_hw.cuda.launch import check, tuned
from arcforge_hw.cuda.sparse_mla import attend_tile, blocks

PART = 512
"""Keys per program."""


@triton.jit
def decode_parts(
    q, kv, pages, visible, out, top, total, heads, width, latent, scale, parts, each, size, LENGTH: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Some keys and a block of heads of one query per program; results are not normalised.

    pages [T, each]: the first row of each page of the query's sequence.
    """
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    h, k = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_K)
    n, r = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_R)
    has_l, has_r, has_h = (n < latent)[None, :], (r < width - latent)[None, :], (h < heads)[:, None]
    q_at = q + (token * heads + h[:, None]) * width
    q_HL = tl.load(q_at + n[None, :], mask=has_h & has_l, other=0.0)
    q_HR = tl.load(q_at + latent + r[None, :], mask=has_h & has_r, other=0.0)
    seen = tl.load(visible + token)
    top_H = tl.full((BLOCK_H,), float("-inf"), dtype=tl.float32)
    total_H = tl.zeros((BLOCK_H,), dtype=tl.float32)
    sum_HL = tl.zeros((BLOCK_H, BLOCK_L), dtype=tl.float32)
    for start in range(0, LENGTH, BLOCK_K):
        key_K = part * LENGTH + start + k
        there = (key_K < seen)[:, None]
        row_K = tl.load(pages + token * each + key_K // size, mask=key_K < seen, other=0) + key_K % size
        kv_at = kv + row_K[:, None] * width
        kv_KL = tl.load(kv_at + n[None, :], mask=there & has_l, other=0.0)
        kv_KR = tl.load(kv_at + latent + r[None, :], mask=there & has_r, other=0.0)
        top_H, total_H, sum_HL = attend_tile(
            q_HL, q_HR, kv_KL, kv_KR, (key_K < seen)[None, :], scale, top_H, total_H, sum_HL
        )
    at_H = (token * parts + part) * heads + h
    tl.store(out + at_H[:, None] * latent + n[None, :], sum_HL, mask=has_h & has_l)
    tl.store(top + at_H, top_H, mask=h < heads)
    tl.store(total + at_H, total_H, mask=h < heads)


def mla_decode(
    q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.mla_decode`, which also runs if a gradient is needed."""
    if torch.is_grad_enabled() and (q_THC.requires_grad or kv_SC.requires_grad):
        return reference.mla_decode(q_THC, kv_SC, cu_query, cu_key, latent_dim, scale, pages)
    check(q_THC, kv_SC)
    q_THC, kv_SC = q_THC.contiguous(), kv_SC.contiguous()
    tokens, heads, width = q_THC.shape
    lengths_N, keys_N = cu_query.diff().long(), cu_key.diff().long()
    # contiguous keys are one long page
    size = int(keys_N.max()) if pages is None else pages.size
    first_NP = cu_key[:-1, None].long() if pages is None else pages.table_NP * size
    first_TP = first_NP.repeat_interleave(lengths_N, 0)
    place_T = torch.arange(tokens) - cu_query[:-1].long().repeat_interleave(lengths_N)
    visible_T = (keys_N - lengths_N).repeat_interleave(lengths_N) + place_T + 1
    parts, sizes = -(-int(visible_T.max()) // PART), blocks(heads, width, latent_dim)
    sums, tops, totals = (
        q_THC.new_empty(*shape, dtype=torch.float32)
        for shape in ((tokens, parts, heads, latent_dim), (tokens, parts, heads), (tokens, parts, heads))
    )
    decode_parts[(tokens, -(-heads // sizes["BLOCK_H"]), parts)](
        q_THC, kv_SC, first_TP.to(q_THC.device), visible_T.to(q_THC.device), sums, tops, totals, heads, width,
        latent_dim, scale, parts, first_TP.shape[1], size, LENGTH=PART, **sizes, **tuned("decode_parts"),
    )  # fmt: skip
    share_TPH = (tops - tops.amax(1, keepdim=True)).exp()
    out_THL = (sums * share_TPH[..., None]).sum(1) / (totals * share_TPH).sum(1)[..., None]
    return out_THL.to(q_THC.dtype)
