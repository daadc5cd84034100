"""The gated delta rule of linear attention (spec 3.5).

Shapes: T tokens, H heads, K key size, V value size, N segments.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from arcforge_core.ops.reference.ragged import segments


def gated_delta_rule(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_NHKV: Tensor, cu_query: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Linear attention: each token decays a state, corrects the value at its key, and reads the state (spec 3.5).

    ``S <- e^g S; S <- S + k (beta (v - S^T k))^T; o = S^T q * scale``, in fp32 or wider. With keys longer than 1 the
    state may grow without bound.

    Args:
        q_THK, k_THK, v_THV: queries, keys and values of all segments.
        g_TH: logarithms of the decays, at most 0.
        beta_TH: strength of the correction, in [0, 1].
        state_NHKV: each segment's initial state, fp32 or wider.
        cu_query: segments.
        scale: factor on the output.

    Returns:
        ([T, H, V] in v's dtype, the states after each segment's last token in `state_NHKV`'s dtype).
    """
    given = (q_THK, k_THK, v_THV, g_TH.exp(), beta_TH, state_NHKV)
    wide = reduce(torch.promote_types, (x.dtype for x in given), torch.float32)
    *tokens, states_NHKV = (x.to(wide) for x in given)
    outs, states = [], []
    for (rows, _), state_HKV in zip(segments(cu_query, cu_query), states_NHKV, strict=True):
        for q_HK, k_HK, v_HV, decay_H, beta_H in zip(*(x_T[rows] for x_T in tokens), strict=True):
            state_HKV = decay_H[:, None, None] * state_HKV
            error_HV = v_HV - (k_HK[..., None] * state_HKV).sum(1)
            state_HKV = state_HKV + k_HK[..., None] * (beta_H[:, None] * error_HV)[:, None]
            outs.append((q_HK[..., None] * state_HKV).sum(1))
        states.append(state_HKV)
    return (torch.stack(outs) * scale).to(v_THV.dtype), torch.stack(states).to(state_NHKV.dtype)
