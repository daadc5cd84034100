"""Absorbed multi-head latent attention.

Shapes: T query tokens, S keys, H heads, C latent plus rope size of a cache entry.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.reference.attention_varlen import attention_varlen
from arcforge_core.ops.reference.ragged import laid_out


def mla_decode(
    q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """Absorbed MLA: all heads share one entry per token, whose first `latent_dim` values are also the value.

    With `pages`, the entries are a cache's rows, and `pages` gives the rows of each segment.

    Returns:
        [T, H, latent_dim]: attention-weighted latents, before the value up-projection (spec 1.3).
    """
    kv_SC = laid_out(kv_SC, cu_key, pages)
    return attention_varlen(q_THC, kv_SC[:, None], kv_SC[:, None, :latent_dim], cu_query, cu_key, scale)
