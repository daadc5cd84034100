"""MLA after attention in one call of C++. Shapes: T tokens, H heads, J rows of all heads, L latent."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.fused import served

_function = native.by_dtype("mla_epilog", "3p 6i")


def mla_epilog(out_THL: Tensor, kv_b_JL: Tensor, value: int) -> Tensor:
    """See `arcforge_core.ops.reference.mla_epilog`."""
    tokens, heads, latent = out_THL.shape
    if not served(out_THL, latent):
        return reference.mla_epilog(out_THL, kv_b_JL, value)
    up = len(kv_b_JL) // heads
    native.check_dtypes(out_THL, kv_b_JL)
    native.check_shape("kv_b_JL", kv_b_JL, heads * up, latent)
    if not 0 < value <= up:
        raise ValueError(f"value={value}: must be from 1 to {up}, kv_b_JL's rows per head")
    values_TJ = out_THL.new_empty(tokens, heads * value)
    out_THL, kv_b_JL = out_THL.contiguous(), kv_b_JL.contiguous()
    _function(out_THL.dtype)(
        *native.pointers(out_THL, kv_b_JL, values_TJ), tokens, heads, up - value, value, latent, torch.get_num_threads()
    )
    return values_TJ
