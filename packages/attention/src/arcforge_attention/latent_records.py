"""Cached entries of MLA in int8: the bytes of ``[rotated latent | its scale, 4 bytes | rope part in bfloat16]``.

The rope part is not quantised, as in other engines' 8-bit caches.

Shapes: T tokens, S visible keys, K selected keys, L latent, R rope, C = L + R.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Group, Pages, cumulative
from arcforge_core.ops.quant import SCALE_BYTES, from_records

ROPE = torch.bfloat16


def width(latent: int, rotary: int) -> int:
    """Returns the bytes of an entry."""
    return latent + SCALE_BYTES + rotary * ROPE.itemsize


def to_entries(
    entry_TC: Tensor, latent: int, hadamard: Callable[[Tensor], Tensor], to_records: Callable[[Tensor], Tensor]
) -> Tensor:
    """Returns int8 [T, width]."""
    rope = entry_TC[:, latent:].to(ROPE).contiguous().view(torch.int8)
    return torch.cat((to_records(hadamard(entry_TC[:, :latent].contiguous())), rope), dim=-1)


def from_entries(rows: Tensor, latent: int, hadamard: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    """Returns [S, C]; Sylvester's matrices are their own inverses."""
    latent_SL = hadamard(from_records(rows[:, : latent + SCALE_BYTES], dtype))
    rope_SR = rows[:, latent + SCALE_BYTES :].clone(memory_format=torch.contiguous_format).view(ROPE)
    return torch.cat((latent_SL, rope_SR.to(dtype)), dim=-1)


def gather(
    rows: Tensor, pages: Pages | None, selected_TK: Tensor, group: Group
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the rows of each token's selected keys, so that only these are dequantised.

    Returns:
        (rows [T * K, ...], key indices [T, K] within the token's own keys, cumulative queries, cumulative keys): one
        segment per token.
    """
    tokens, keys = selected_TK.shape
    segment_T = torch.repeat_interleave(torch.arange(len(group.segments)), group.cu_query.diff().long())
    key_TK = selected_TK.clamp(min=0)
    if pages is None:
        row_TK = group.cu_key[:-1].long()[segment_T, None] + key_TK
    else:
        row_TK = pages.table_NP[segment_T].gather(1, key_TK // pages.size) * pages.size + key_TK % pages.size
    own_TK = torch.where(selected_TK < 0, -1, torch.arange(keys).expand(tokens, -1))
    return rows[row_TK.flatten()], own_TK, cumulative([1] * tokens), cumulative([keys] * tokens)
