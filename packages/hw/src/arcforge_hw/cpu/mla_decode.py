"""Absorbed MLA decode: all heads share one entry, as in attention with a single key/value head.

Shapes: T query tokens, S keys, H heads, C latent plus rope size of an entry.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.reference import laid_out
from arcforge_hw.cpu.attention_varlen import attention_varlen


def mla_decode(
    q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.mla_decode`; the heads become rows of one product and entries are not copied."""
    kv_SGC = laid_out(kv_SC, cu_key, pages)[:, None]
    return attention_varlen(q_THC, kv_SGC, kv_SGC[..., :latent_dim], cu_query, cu_key, scale)
