"""MLA's absorbed queries, for a few decoded tokens; a fused op without gradients.

Shapes: T tokens, H heads, J rows of all heads, L key/value latent, C latent plus rope size, F half the rope size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference.head_linear import head_linear
from arcforge_core.ops.reference.rope import rope


def mla_absorb(q_TJ: Tensor, kv_b_JL: Tensor, cos_TF: Tensor, sin_TF: Tensor, heads: int) -> Tensor:
    """Absorbed queries of MLA: rotates the rope part and maps the nope part into the latent space.

    Args:
        q_TJ: all heads' projected queries, the nope part first.
        kv_b_JL: up-projection of keys and values, a head's keys first.
        cos_TF, sin_TF: rotary tables.
        heads: number of heads.

    Returns:
        [T, H, C].
    """
    q_THK, rotary = q_TJ.unflatten(-1, (heads, -1)), 2 * cos_TF.shape[1]
    nope = q_THK.shape[-1] - rotary
    up_HNL = kv_b_JL.unflatten(0, (heads, -1))[:, :nope]
    return torch.cat((head_linear(q_THK[..., :nope], up_HNL.mT), rope(q_THK[..., nope:], cos_TF, sin_TF)), dim=-1)
