"""The lightning indexer after its query projection, for a few decoded tokens; a fused op without gradients.

Shapes: T tokens, D hidden, J rows of all heads, I index heads, K index head size, F half the rope size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.ops.reference.linear import linear
from arcforge_core.ops.reference.rope import rope


def index_prolog(
    x_TD: Tensor, q_TJ: Tensor, wk_KD: Tensor, norm_K: Tensor, norm_bias_K: Tensor, weights_ID: Tensor, cos_TF: Tensor,
    sin_TF: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The lightning indexer after its query projection (spec 1.4); the rotated part comes first.

    Args:
        x_TD: tokens.
        q_TJ: all heads' projected queries.
        wk_KD, norm_K, norm_bias_K, weights_ID: weights.
        cos_TF, sin_TF: rotary tables.
        eps: of the norm.

    Returns:
        Queries [T, I, K], keys [T, K], head weights [T, I], which include the constants ``(I K)^-0.5``.
    """
    heads, width, rotary = len(weights_ID), len(wk_KD), 2 * cos_TF.shape[1]

    def rotate(x_TIK: Tensor) -> Tensor:
        return torch.cat((rope(x_TIK[..., :rotary], cos_TF, sin_TF), x_TIK[..., rotary:]), dim=-1)

    key_TK = F.layer_norm(linear(x_TD, wk_KD), (width,), norm_K, norm_bias_K, eps)
    w_TI = linear(x_TD, weights_ID) * (heads * width) ** -0.5
    return rotate(q_TJ.unflatten(-1, (heads, width))), rotate(key_TK[:, None])[:, 0], w_TI
