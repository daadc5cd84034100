"""MLA before attention as one op, for a few decoded tokens; a fused op without gradients.

Shapes: T tokens, D hidden, Q query latent, H heads, J rows of all heads' queries, X rows of all heads' keys and values,
L key/value latent, C latent plus rope size, F half the rope size.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops.reference.linear import linear
from arcforge_core.ops.reference.mla_absorb import mla_absorb
from arcforge_core.ops.reference.mla_prolog import mla_prolog


def mla_project(
    x_TD: Tensor, q_a_QD: Tensor, q_norm_Q: Tensor, q_b_JQ: Tensor, kv_a_CD: Tensor, kv_norm_L: Tensor,
    kv_b_XL: Tensor, cos_TF: Tensor, sin_TF: Tensor, eps: float, heads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`mla_prolog`, the query's up-projection and `mla_absorb` in one, as vendors fuse them.

    Returns:
        The normalised query latent [T, Q]; absorbed queries [T, H, C]; entries [T, C].
    """
    q_TQ, entry_TC = mla_prolog(x_TD, q_a_QD, q_norm_Q, kv_a_CD, kv_norm_L, cos_TF, sin_TF, eps)
    return q_TQ, mla_absorb(linear(q_TQ, q_b_JQ), kv_b_XL, cos_TF, sin_TF, heads), entry_TC
