"""Segments of ragged tokens, causal masks and the softmax that all attention references share.

Shapes: T query tokens, S keys, K selected keys, N segments.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages


def segments(cu_query: Tensor, cu_key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yields (query rows, key rows) of each segment."""
    starts_q, starts_k = cu_query.tolist(), cu_key.tolist()
    for n in range(len(starts_q) - 1):
        yield slice(starts_q[n], starts_q[n + 1]), slice(starts_k[n], starts_k[n + 1])


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Returns bool [queries, keys], True where the key is visible (bottom-right causal)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def laid_out(x_SD: Tensor, cu_key: Tensor, pages: Pages | None) -> Tensor:
    """Returns contiguous keys, gathered from a cache's pages if given."""
    return x_SD if pages is None else x_SD[pages.key_rows(cu_key).to(x_SD.device)]


def window_mask(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Returns `causal_mask` without the keys that are `window` or more positions back."""
    return causal_mask(queries, keys, device).triu(keys - queries - window + 1)


def selected_mask(indices_TK: Tensor, keys: int) -> Tensor:
    """Returns bool [T, S], True where a query selected a key of its segment."""
    mask_TS = torch.zeros(len(indices_TK), keys + 1, dtype=torch.bool, device=indices_TK.device)
    return mask_TS.scatter_(1, torch.where(indices_TK < 0, keys, indices_TK), True)[:, :keys]


def wide_softmax(scores: Tensor) -> Tensor:
    """Returns the softmax over the last axis, in fp32 or wider."""
    return torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32))
