"""Absorbed attention of few queries in C++: threads share one query's keys. It has no backward pass.

Shapes: T query tokens, S keys, H heads, C latent plus rope, L latent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.reference import laid_out
from arcforge_hw.cpu import mla_decode as tiled
from arcforge_hw.cpu import native

_function = native.by_dtype("mla_decode", "4p i p 2i p 3i d i")


def _attend(
    q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    run = _function(q_THC.dtype)
    native.check_dtypes(q_THC, kv_SC)
    native.check_shape("kv_SC", kv_SC, len(kv_SC), q_THC.shape[-1])
    if not 0 < latent_dim <= kv_SC.shape[1]:
        raise ValueError(f"latent_dim={latent_dim}: must be from 1 to {kv_SC.shape[1]}, the entry size")
    native.check_segments(cu_query, cu_key, len(q_THC), len(kv_SC), pages)
    q_THC, kv_SC, cu_query, cu_key = q_THC.contiguous(), kv_SC.contiguous(), cu_query.int(), cu_key.int()
    out_THL = q_THC.new_empty(*q_THC.shape[:2], latent_dim)
    q_at, kv_at, queries_at, keys_at, out_at = native.pointers(q_THC, kv_SC, cu_query, cu_key, out_THL)
    run(
        q_at, kv_at, queries_at, keys_at, len(cu_query) - 1, *native.page_table(pages), out_at, *q_THC.shape[1:],
        latent_dim, scale, torch.get_num_threads(),
    )  # fmt: skip
    return out_THL


@torch.library.custom_op("arcforge_native::mla_decode", mutates_args=())
def _forward(q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float) -> Tensor:
    return _attend(q_THC, kv_SC, cu_query, cu_key, latent_dim, scale)


@_forward.register_fake
def _(q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float) -> Tensor:
    return q_THC.new_empty(*q_THC.shape[:2], latent_dim)


def mla_decode(
    q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.mla_decode`; if a gradient is needed the tiled kernel runs."""
    if native.direct(q_THC, kv_SC):
        return _attend(q_THC, kv_SC, cu_query, cu_key, latent_dim, scale, pages)
    if torch.is_grad_enabled() and (q_THC.requires_grad or kv_SC.requires_grad):
        return tiled.mla_decode(q_THC, kv_SC, cu_query, cu_key, latent_dim, scale, pages)
    out_THL: Tensor = _forward(q_THC, laid_out(kv_SC, cu_key, pages), cu_query, cu_key, latent_dim, scale)
    return out_THL
