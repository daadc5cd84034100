"""MLA before attention by ``npu_mla_prolog_v3``, for decoded tokens.

The operator writes a paged cache of latents and rotated parts apart; ours stores an entry in one row, so it writes into
pages of its own, and the entries are put together. It takes weights turned and contiguous: a serving model keeps them
so (`layouts`), and others are copied in each call. The part of `kv_b_proj` that belongs to keys is always copied: a
layout knows a weight's shape alone, not where a head's keys end, and steps with prompts read the whole matrix.

Shapes: T tokens, D hidden, Q query latent, H heads, L latent, R rotated part, F = R / 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_hw.ascend import layouts
from arcforge_hw.ascend.calls import LATENT, ROTATED, npu

HIDDEN = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192)
QUERY_LATENTS = {"early": (1536,), "late": (1536, 2048)}
NOPE = {"early": (128,), "late": (128, 192)}
"""Sizes by generation of the documents: the early ones leave out GLM-5, the late ones include it."""
BLOCK = 16
"""Rows of a page."""


def supports(documents: str) -> Callable[[OpCall], Verdict]:
    """Returns a function that says whether a call's sizes are in the documents of a generation."""

    def answer(call: OpCall) -> Verdict:
        if call.dtype != torch.bfloat16:
            return Verdict(False, f"npu_mla_prolog_v3 takes bfloat16, not {call.dtype}")
        wanted = {"hidden": HIDDEN, "query_latent": QUERY_LATENTS[documents], "nope": NOPE[documents],
                  "latent": (LATENT,), "rotary": (ROTATED,)}  # fmt: skip
        for name, accepted in wanted.items():
            if (size := call.sizes.get(name, accepted[0])) not in accepted:
                return Verdict(False, f"npu_mla_prolog_v3 takes {name} of {accepted}, not {size}")
        if (heads := call.sizes.get("heads", 1)).bit_count() != 1 or heads > 128:
            return Verdict(False, f"npu_mla_prolog_v3 takes a power of two up to 128 heads, not {heads}")
        return YES

    return answer


def mla_project(
    x_TD: Tensor, q_a_QD: Tensor, q_norm_Q: Tensor, q_b_JQ: Tensor, kv_a_CD: Tensor, kv_norm_L: Tensor,
    kv_b_XL: Tensor, cos_TF: Tensor, sin_TF: Tensor, eps: float, heads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See `arcforge_core.ops.reference.mla_project`."""
    return projected(
        x_TD, layouts.turned(q_a_QD), q_norm_Q, layouts.turned(q_b_JQ), layouts.turned(kv_a_CD), kv_norm_L, kv_b_XL,
        cos_TF, sin_TF, eps, heads,
    )  # fmt: skip


def projected(
    x_TD: Tensor, q_a_DQ: Tensor, q_norm_Q: Tensor, q_b_QJ: Tensor, kv_a_DC: Tensor, kv_norm_L: Tensor,
    kv_b_XL: Tensor, cos_TF: Tensor, sin_TF: Tensor, eps: float, heads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `mla_project`, for weights that are turned already."""
    tokens, nope = len(x_TD), q_b_QJ.shape[1] // heads - ROTATED
    blocks = -(-tokens // BLOCK)
    latents, turned = (x_TD.new_zeros(blocks, BLOCK, 1, width) for width in (LATENT, ROTATED))
    up_HNL = kv_b_XL.unflatten(0, (heads, -1))[:, :nope]
    cos_TR, sin_TR = (torch.cat((table, table), -1).to(x_TD.dtype) for table in (cos_TF, sin_TF))
    query, query_rope, _, q_TQ, _ = npu("npu_mla_prolog_v3")(
        x_TD.contiguous(), q_a_DQ, q_b_QJ, up_HNL.contiguous(), kv_a_DC,
        q_norm_Q.contiguous(), kv_norm_L.contiguous(), sin_TR, cos_TR, latents, turned,
        cache_index=torch.arange(tokens, device=x_TD.device), rmsnorm_epsilon_cq=eps, rmsnorm_epsilon_ckv=eps,
        cache_mode="PA_BSND", query_norm_flag=True,
    )  # fmt: skip
    entry_TC = torch.cat((latents.flatten(0, 2), _pairs(turned.flatten(0, 2))), -1)[:tokens]
    return q_TQ, torch.cat((query, _pairs(query_rope)), -1), entry_TC


def _pairs(halves: Tensor) -> Tensor:
    """Returns rotated values in pairs; the operator gives the first values of all pairs before the second."""
    return torch.stack(halves.chunk(2, -1), -1).flatten(-2)
