"""Absorbed attention to selected keys in Triton: gathers keys tile by tile with an online softmax.

The gradient of entries is summed key by key over the queries that selected it, in their order and without atomics, so
it has the same bits on every run. This needs the (query, key) pairs sorted by key, once in the backward pass.

Shapes: T query tokens, S keys, H heads of a program, K keys of a tile, L latent, R rope part, C = L + R.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_hw.cuda.launch import check, power_of_two, tuned
from arcforge_hw.torch_ops.sparse_mla import key_rows

MOST_HEADS = 16
"""Maximum heads per program: with 64, the rows of one Hopper wgmma, the sums do not fit into registers together with
the addresses of gathered rows (576 bytes per thread spilled)."""


@triton.jit
def attend_tile(q_HL, q_HR, kv_KL, kv_KR, there_1K, scale, top_H, total_H, sum_HL):
    """Adds a tile of keys to an online softmax: running maximum, sum of exponentials, sum of weighted latents."""
    score_HK = tl.dot(q_HL, tl.trans(kv_KL), input_precision="ieee")
    score_HK = tl.dot(q_HR, tl.trans(kv_KR), score_HK, input_precision="ieee")
    score_HK = tl.where(there_1K, score_HK * scale, float("-inf"))
    new_H = tl.maximum(top_H, tl.max(score_HK, axis=1))
    finite_H = tl.where(new_H == float("-inf"), 0.0, new_H)  # a tile without a key
    p_HK = tl.exp(score_HK - finite_H[:, None])
    kept_H = tl.exp(top_H - finite_H)
    total_H = total_H * kept_H + tl.sum(p_HK, axis=1)
    sum_HL = tl.dot(p_HK.to(kv_KL.dtype), kv_KL, sum_HL * kept_H[:, None], input_precision="ieee")
    return new_H, total_H, sum_HL


@triton.jit
def sparse_forward(
    q, kv, rows, out, lse, heads, width, latent, scale, TOPK: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """A block of heads of one query per program."""
    token = tl.program_id(0).to(tl.int64)
    h, k = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_K)
    n, r = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_R)
    has_l, has_r, has_h = (n < latent)[None, :], (r < width - latent)[None, :], (h < heads)[:, None]
    q_at = q + (token * heads + h[:, None]) * width
    q_HL = tl.load(q_at + n[None, :], mask=has_h & has_l, other=0.0)
    q_HR = tl.load(q_at + latent + r[None, :], mask=has_h & has_r, other=0.0)
    top_H = tl.full((BLOCK_H,), float("-inf"), dtype=tl.float32)
    total_H = tl.zeros((BLOCK_H,), dtype=tl.float32)
    sum_HL = tl.zeros((BLOCK_H, BLOCK_L), dtype=tl.float32)
    for start in range(0, TOPK, BLOCK_K):
        row_K = tl.load(rows + token * TOPK + start + k, mask=start + k < TOPK, other=-1)
        there = (row_K >= 0)[:, None]
        kv_at = kv + row_K[:, None].to(tl.int64) * width
        kv_KL = tl.load(kv_at + n[None, :], mask=there & has_l, other=0.0)
        kv_KR = tl.load(kv_at + latent + r[None, :], mask=there & has_r, other=0.0)
        top_H, total_H, sum_HL = attend_tile(
            q_HL, q_HR, kv_KL, kv_KR, (row_K >= 0)[None, :], scale, top_H, total_H, sum_HL
        )
    out_at = out + (token * heads + h[:, None]) * latent + n[None, :]
    tl.store(out_at, (sum_HL / total_H[:, None]).to(out.dtype.element_ty), mask=has_h & has_l)
    tl.store(lse + token * heads + h, top_H + tl.log(total_H), mask=h < heads)


@triton.jit
def sparse_backward_queries(
    grad, q, kv, rows, lse, delta, dq, heads, width, latent, scale, TOPK: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of heads of one query per program."""
    token = tl.program_id(0).to(tl.int64)
    h, k = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_K)
    n, r = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_R)
    has_l, has_r, has_h = (n < latent)[None, :], (r < width - latent)[None, :], (h < heads)[:, None]
    q_at = q + (token * heads + h[:, None]) * width
    q_HL = tl.load(q_at + n[None, :], mask=has_h & has_l, other=0.0)
    q_HR = tl.load(q_at + latent + r[None, :], mask=has_h & has_r, other=0.0)
    grad_at = grad + (token * heads + h[:, None]) * latent + n[None, :]
    grad_HL = tl.load(grad_at, mask=has_h & has_l, other=0.0)
    lse_H = tl.load(lse + token * heads + h, mask=h < heads, other=0.0)
    delta_H = tl.load(delta + token * heads + h, mask=h < heads, other=0.0)
    dq_HL = tl.zeros((BLOCK_H, BLOCK_L), dtype=tl.float32)
    dq_HR = tl.zeros((BLOCK_H, BLOCK_R), dtype=tl.float32)
    for start in range(0, TOPK, BLOCK_K):
        row_K = tl.load(rows + token * TOPK + start + k, mask=start + k < TOPK, other=-1)
        there = (row_K >= 0)[:, None]
        kv_at = kv + row_K[:, None].to(tl.int64) * width
        kv_KL = tl.load(kv_at + n[None, :], mask=there & has_l, other=0.0)
        kv_KR = tl.load(kv_at + latent + r[None, :], mask=there & has_r, other=0.0)
        score_HK = tl.dot(q_HL, tl.trans(kv_KL), input_precision="ieee")
        score_HK = tl.dot(q_HR, tl.trans(kv_KR), score_HK, input_precision="ieee")
        p_HK = tl.where((row_K >= 0)[None, :], tl.exp(score_HK * scale - lse_H[:, None]), 0.0)
        dp_HK = tl.dot(grad_HL, tl.trans(kv_KL), input_precision="ieee")
        dscore_HK = (p_HK * (dp_HK - delta_H[:, None]) * scale).to(kv_KL.dtype)
        dq_HL = tl.dot(dscore_HK, kv_KL, dq_HL, input_precision="ieee")
        dq_HR = tl.dot(dscore_HK, kv_KR, dq_HR, input_precision="ieee")
    dq_at = dq + (token * heads + h[:, None]) * width
    tl.store(dq_at + n[None, :], dq_HL.to(dq.dtype.element_ty), mask=has_h & has_l)
    tl.store(dq_at + latent + r[None, :], dq_HR.to(dq.dtype.element_ty), mask=has_h & has_r)


@triton.jit
def sparse_backward_keys(
    grad, q, kv, tokens, starts, lse, delta, dkv, heads, width, latent, scale,
    BLOCK_H: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """The gradient of one entry per program; the queries that selected it are in `tokens` from ``starts[key]`` on."""
    key = tl.program_id(0).to(tl.int64)
    n, r = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_R)
    kv_L = tl.load(kv + key * width + n, mask=n < latent, other=0.0).to(tl.float32)
    kv_R = tl.load(kv + key * width + latent + r, mask=r < width - latent, other=0.0).to(tl.float32)
    dkv_L, dkv_R = tl.zeros((BLOCK_L,), dtype=tl.float32), tl.zeros((BLOCK_R,), dtype=tl.float32)
    for pair in range(tl.load(starts + key), tl.load(starts + key + 1)):
        token = tl.load(tokens + pair).to(tl.int64)
        for first in range(0, heads, BLOCK_H):
            h = first + tl.arange(0, BLOCK_H)
            has_h = (h < heads)[:, None]
            at_H = token * heads + h
            q_HL = tl.load(q + at_H[:, None] * width + n[None, :], mask=has_h & (n < latent)[None, :], other=0.0)
            q_HR = tl.load(
                q + at_H[:, None] * width + latent + r[None, :], mask=has_h & (r < width - latent)[None, :], other=0.0
            )
            grad_HL = tl.load(grad + at_H[:, None] * latent + n[None, :], mask=has_h & (n < latent)[None, :], other=0.0)
            q_HL, q_HR, grad_HL = q_HL.to(tl.float32), q_HR.to(tl.float32), grad_HL.to(tl.float32)
            score_H = tl.sum(q_HL * kv_L[None, :], axis=1) + tl.sum(q_HR * kv_R[None, :], axis=1)
            lse_H = tl.load(lse + at_H, mask=h < heads, other=0.0)
            p_H = tl.where(h < heads, tl.exp(score_H * scale - lse_H), 0.0)
            dp_H = tl.sum(grad_HL * kv_L[None, :], axis=1)
            dscore_H = p_H * (dp_H - tl.load(delta + at_H, mask=h < heads, other=0.0)) * scale
            dkv_L += tl.sum(dscore_H[:, None] * q_HL + p_H[:, None] * grad_HL, axis=0)
            dkv_R += tl.sum(dscore_H[:, None] * q_HR, axis=0)
    tl.store(dkv + key * width + n, dkv_L.to(dkv.dtype.element_ty), mask=n < latent)
    tl.store(dkv + key * width + latent + r, dkv_R.to(dkv.dtype.element_ty), mask=r < width - latent)


def blocks(heads: int, width: int, latent: int) -> dict[str, int]:
    """Returns the block sizes of a program; each side of a product must be at least 16."""
    return {
        "BLOCK_H": min(MOST_HEADS, power_of_two(heads, 16)),
        "BLOCK_L": power_of_two(latent, 16),
        "BLOCK_R": power_of_two(width - latent, 16),
    }


def pairs_by_key(rows_TK: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Returns the positions in `rows_TK` of each key, sorted by key, and each key's first position [S + 1]."""
    flat = rows_TK.flatten()
    key_P, order = torch.where(flat < 0, keys, flat).sort(stable=True)
    return order, torch.searchsorted(key_P, torch.arange(keys + 1, device=flat.device))


class _SparseMla(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent: int, scale: float) -> Tensor:
        check(q_THC, kv_SC, rows_TK)
        q_THC, kv_SC, rows_TK = q_THC.contiguous(), kv_SC.contiguous(), rows_TK.contiguous()
        (tokens, heads, width), topk = q_THC.shape, rows_TK.shape[1]
        out_THL, lse_TH = q_THC.new_empty(tokens, heads, latent), q_THC.new_empty(tokens, heads, dtype=torch.float32)
        sizes = blocks(heads, width, latent)
        if tokens:
            sparse_forward[(tokens, -(-heads // sizes["BLOCK_H"]))](
                q_THC, kv_SC, rows_TK, out_THL, lse_TH, heads, width, latent, scale, TOPK=topk, **sizes,
                **tuned("sparse_forward"),
            )  # fmt: skip
        ctx.scale = scale
        ctx.save_for_backward(q_THC, kv_SC, rows_TK, out_THL, lse_TH)
        return out_THL

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_THC, kv_SC, rows_TK, out_THL, lse_TH = ctx.saved_tensors
        (tokens, heads, width), latent = q_THC.shape, out_THL.shape[-1]
        grad_THL, sizes = grads[0].contiguous(), blocks(heads, width, latent)
        delta_TH = (grad_THL.float() * out_THL.float()).sum(-1)
        dq_THC, dkv_SC = torch.empty_like(q_THC), torch.zeros_like(kv_SC)
        if tokens:
            sparse_backward_queries[(tokens, -(-heads // sizes["BLOCK_H"]))](
                grad_THL, q_THC, kv_SC, rows_TK, lse_TH, delta_TH, dq_THC, heads, width, latent, ctx.scale,
                TOPK=rows_TK.shape[1], **sizes, **tuned("sparse_backward_queries"),
            )  # fmt: skip
            pairs_P, starts_S = pairs_by_key(rows_TK, len(kv_SC))
            tokens_P = (pairs_P // rows_TK.shape[1]).to(torch.int32)
            sparse_backward_keys[(len(kv_SC),)](
                grad_THL, q_THC, kv_SC, tokens_P, starts_S, lse_TH, delta_TH, dkv_SC, heads, width, latent, ctx.scale,
                **{**sizes, "BLOCK_H": 16}, **tuned("sparse_backward_keys"),
            )  # fmt: skip
        return dq_THC, dkv_SC, None, None, None


def sparse_mla(
    q_THC: Tensor, kv_SC: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.sparse_mla`."""
    rows_TK = key_rows(indices_TK, cu_query, cu_key, pages)
    out_THL: Tensor = _SparseMla.apply(q_THC, kv_SC, rows_TK, latent_dim, scale)
    return out_THL
