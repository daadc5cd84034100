"""Causal attention of a few tokens with a cache.

Shapes: T query tokens, S keys, H heads, G key/value heads (H a multiple of G), K key size, V value size.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.reference.attention_varlen import attention_varlen
from arcforge_core.ops.reference.ragged import laid_out


def attention_decode(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """`attention_varlen` for a few tokens with a cache.

    With `pages`, keys and values are a cache's rows, and `pages` gives the rows of each segment.
    """
    k_SGK, v_SGV = (laid_out(x, cu_key, pages) for x in (k_SGK, v_SGV))
    return attention_varlen(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)
