"""Absorbed multi-head latent attention over selected keys.

Shapes: T query tokens, S keys, H heads, C latent plus rope size of a cache entry, K selected keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.reference.ragged import laid_out, segments, wide_softmax


def sparse_mla(
    q_THC: Tensor, kv_SC: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """Absorbed MLA over selected keys only.

    Args:
        q_THC: absorbed queries.
        kv_SC: shared entries of all segments.
        indices_TK: key indices in the token's segment, without duplicates, padded with -1; at least one per token.
        cu_query, cu_key: segments.
        latent_dim: leading values of an entry that are the value.
        scale: softmax scale, ``(nope + rope) ** -0.5``.
        pages: rows of each segment's keys, if the entries are a cache's rows.

    Returns:
        [T, H, latent_dim].
    """
    kv_SC = laid_out(kv_SC, cu_key, pages)
    outs = []
    for rows_q, rows_k in segments(cu_query, cu_key):
        q, kv, index = q_THC[rows_q], kv_SC[rows_k], indices_TK[rows_q]
        # not kv[index]: its backward adds repeated rows in an order that depends on the threads
        entries_TKC = kv.index_select(0, index.clamp(min=0).flatten()).unflatten(0, index.shape)
        scores = torch.einsum("thc,tkc->thk", q, entries_TKC) * scale
        probs = wide_softmax(scores.masked_fill((index < 0)[:, None], float("-inf")))
        outs.append(torch.einsum("thk,tkc->thc", probs.to(kv.dtype), entries_TKC[..., :latent_dim]))
    return torch.cat(outs)
