"""Absorbed queries of MLA in one call of C++. Shapes: T tokens, H heads, J rows of all heads, C latent plus rope,
L latent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.fused import served, tables

_function = native.by_dtype("mla_absorb", "5p 7i")


def mla_absorb(q_TJ: Tensor, kv_b_JL: Tensor, cos_TF: Tensor, sin_TF: Tensor, heads: int) -> Tensor:
    """See `arcforge_core.ops.reference.mla_absorb`."""
    (tokens, rows), (up, latent), rotary = q_TJ.shape, kv_b_JL.shape, 2 * cos_TF.shape[1]
    if not served(q_TJ, latent):
        return reference.mla_absorb(q_TJ, kv_b_JL, cos_TF, sin_TF, heads)
    native.check_dtypes(q_TJ, kv_b_JL)
    nope = rows // heads - rotary
    value = up // heads - nope
    native.check_shape("q_TJ", q_TJ, tokens, heads * (nope + rotary))
    native.check_shape("kv_b_JL", kv_b_JL, heads * (nope + value), latent)
    if min(nope, value) < 0:
        raise ValueError(f"head sizes nope={nope}, value={value} with {rotary} rotated values: must be at least 0")
    tensors = [x.contiguous() for x in (q_TJ, kv_b_JL, *tables(cos_TF, sin_TF, tokens, q_TJ.dtype))]
    q_THC = q_TJ.new_empty(tokens, heads, latent + rotary)
    _function(q_TJ.dtype)(
        *native.pointers(*tensors, q_THC), tokens, heads, nope, rotary, value, latent, torch.get_num_threads()
    )
    return q_THC
