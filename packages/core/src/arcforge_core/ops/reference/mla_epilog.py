"""MLA after attention, for a few decoded tokens; a fused op without gradients.

Shapes: T tokens, H heads, J rows of all heads, L key/value latent, V value size.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops.reference.head_linear import head_linear


def mla_epilog(out_THL: Tensor, kv_b_JL: Tensor, value: int) -> Tensor:
    """Returns all heads' values [T, H * value]: attended latents times the value up-projection, a head's last rows."""
    up_HVL = kv_b_JL.unflatten(0, (out_THL.shape[1], -1))[:, -value:]
    return head_linear(out_THL, up_HVL).flatten(1)
