"""MLA before attention in one call of C++.

Shapes: T tokens, D hidden, Q query latent, C latent plus rope, L latent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.fused import served, tables

_function = native.by_dtype("mla_prolog", "9p 5i d i")


def mla_prolog(
    x_TD: Tensor, q_a_QD: Tensor, q_norm_Q: Tensor, kv_a_CD: Tensor, kv_norm_L: Tensor, cos_TF: Tensor, sin_TF: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See `arcforge_core.ops.reference.mla_prolog`."""
    (tokens, hidden), query, latent, pairs = x_TD.shape, len(q_a_QD), len(kv_norm_L), cos_TF.shape[1]
    given = (x_TD, q_a_QD, q_norm_Q, kv_a_CD, kv_norm_L)
    if not served(x_TD, hidden):
        return reference.mla_prolog(*given, cos_TF, sin_TF, eps)
    native.check_dtypes(*given)
    native.check_shape("q_a_QD", q_a_QD, query, hidden)
    native.check_shape("q_norm_Q", q_norm_Q, query)
    native.check_shape("kv_a_CD", kv_a_CD, latent + 2 * pairs, hidden)
    cos_sin = tables(cos_TF, sin_TF, tokens, x_TD.dtype)
    q_TQ, entry_TC = x_TD.new_empty(tokens, query), x_TD.new_empty(tokens, latent + 2 * pairs)
    tensors = [x.contiguous() for x in (*given, *cos_sin)]
    _function(x_TD.dtype)(
        *native.pointers(*tensors, q_TQ, entry_TC),
        tokens,
        hidden,
        query,
        2 * pairs,
        latent,
        eps,
        torch.get_num_threads(),
    )
    return q_TQ, entry_TC
