"""MLA before attention, for a few decoded tokens; a fused op without gradients.

Shapes: T tokens, D hidden, Q query latent, L key/value latent, C latent plus rope size, F half the rope size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference.linear import linear
from arcforge_core.ops.reference.rms_norm import rms_norm
from arcforge_core.ops.reference.rope import rope


def mla_prolog(
    x_TD: Tensor, q_a_QD: Tensor, q_norm_Q: Tensor, kv_a_CD: Tensor, kv_norm_L: Tensor, cos_TF: Tensor, sin_TF: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The latents of MLA (spec 1.3), without the query's up-projection, which is a separate product.

    Returns:
        The normalised query latent [T, Q]; entries [T, C], of which the first L are the key/value latent.
    """
    q_TQ = rms_norm(linear(x_TD, q_a_QD), q_norm_Q, eps)
    latent_TL, rope_TR = linear(x_TD, kv_a_CD).split((len(kv_norm_L), 2 * cos_TF.shape[1]), dim=-1)
    rope_TR = rope(rope_TR[:, None], cos_TF, sin_TF)[:, 0]
    return q_TQ, torch.cat((rms_norm(latent_TL, kv_norm_L, eps), rope_TR), dim=-1)
