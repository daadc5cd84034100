"""A whole MLA layer of a step that only decodes, cache included; a fused op without gradients.

Shapes: T new tokens, D hidden, Q query latent, H heads, J rows of all heads' queries, X rows of all heads' keys and
values, Y all heads' values, L key/value latent, C latent plus rope size, F half the rope size, R rows of the cache.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.reference.linear import linear
from arcforge_core.ops.reference.mla_decode import mla_decode
from arcforge_core.ops.reference.mla_epilog import mla_epilog
from arcforge_core.ops.reference.mla_project import mla_project


def mla_layer(
    x_TD: Tensor, q_a_QD: Tensor, q_norm_Q: Tensor, q_b_JQ: Tensor, kv_a_CD: Tensor, kv_norm_L: Tensor,
    kv_b_XL: Tensor, o_DY: Tensor, cos_TF: Tensor, sin_TF: Tensor, cache_RC: Tensor, slot_T: Tensor,
    cu_query: Tensor, cu_key: Tensor, pages: Pages, eps: float, heads: int, scale: float,
) -> Tensor:  # fmt: skip
    """`mla_project`, the write of its entries, `mla_decode`, `mla_epilog` and the output projection in one.

    The entry of token t is written to ``cache_RC[slot_T[t]]``, in place, before any token attends. `cu_key` counts the
    new tokens, and `pages` gives the rows of all keys.

    Returns:
        [T, D]: the layer's output.
    """
    _, q_THC, entry_TC = mla_project(
        x_TD, q_a_QD, q_norm_Q, q_b_JQ, kv_a_CD, kv_norm_L, kv_b_XL, cos_TF, sin_TF, eps, heads
    )
    cache_RC.index_copy_(0, slot_T, entry_TC)
    out_THL = mla_decode(q_THC, cache_RC, cu_query, cu_key, len(kv_norm_L), scale, pages)
    return linear(mla_epilog(out_THL, kv_b_XL, o_DY.shape[1] // heads), o_DY)
