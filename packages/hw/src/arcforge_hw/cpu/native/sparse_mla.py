"""Absorbed attention to selected keys in C++: a query's keys are gathered once, forward and backward.

Gradients of entries are added in the order of the queries for any number of threads.

Shapes: T query tokens, S keys, H heads, C latent plus rope, L latent, K selected keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_hw.cpu import native
from arcforge_hw.torch_ops.sparse_mla import key_rows, register_gradients

_sparse_mla = native.by_dtype("sparse_mla", "4p 6i d i")
_sparse_mla_backward = native.by_dtype("sparse_mla_backward", "6p 6i d i")


def _check_sizes(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int) -> None:
    native.check_shape("kv_SC", kv_SC, len(kv_SC), q_THC.shape[-1])
    native.check_shape("indices_TK", rows_TK, len(q_THC), rows_TK.shape[-1])
    if not 0 < latent_dim <= kv_SC.shape[1]:
        raise ValueError(f"latent_dim={latent_dim}: must be from 1 to {kv_SC.shape[1]}, the entry size")


def _sizes(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float) -> tuple[Any, ...]:
    tokens, heads, width = q_THC.shape
    return tokens, len(kv_SC), heads, rows_TK.shape[1], width, latent_dim, scale, torch.get_num_threads()


def _key_rows(
    indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, tokens: int, keys: int, pages: Pages | None
) -> Tensor:
    """`key_rows` without torch's operators."""
    if pages is None and len(cu_key) == 2:
        return indices_TK
    native.check_segments(cu_query, cu_key, tokens, keys, pages)
    native.check_rows(indices_TK, keys if pages is None else pages.table_NP.shape[1] * pages.size)
    indices_TK, cu_query, cu_key = indices_TK.contiguous(), cu_query.int(), cu_key.int()
    rows_TK = torch.empty_like(indices_TK)
    indices_at, queries_at, keys_at, rows_at = native.pointers(indices_TK, cu_query, cu_key, rows_TK)
    native.function(
        "arcforge_key_rows",
        "3p i p 3i p",
    )(indices_at, queries_at, keys_at, len(cu_key) - 1, *native.page_table(pages), indices_TK.shape[1], rows_at)
    return rows_TK


def _attend(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float) -> Tensor:
    run = _sparse_mla(q_THC.dtype)
    native.check_dtypes(q_THC, kv_SC)
    _check_sizes(q_THC, kv_SC, rows_TK, latent_dim)
    native.check_rows(rows_TK, len(kv_SC))
    q_THC, kv_SC, rows_TK = q_THC.contiguous(), kv_SC.contiguous(), rows_TK.contiguous()
    out_THL = q_THC.new_empty(*q_THC.shape[:2], latent_dim)
    run(*native.pointers(q_THC, kv_SC, rows_TK, out_THL), *_sizes(q_THC, kv_SC, rows_TK, latent_dim, scale))
    return out_THL


_forward = torch.library.custom_op("arcforge_native::sparse_mla", _attend, mutates_args=())


@_forward.register_fake
def _(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float) -> Tensor:
    return q_THC.new_empty(*q_THC.shape[:2], latent_dim)


@torch.library.custom_op("arcforge_native::sparse_mla_backward", mutates_args=())
def _backward(
    grad_THL: Tensor, q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of queries and entries."""
    run = _sparse_mla_backward(q_THC.dtype)
    native.check_dtypes(q_THC, kv_SC, grad_THL)
    _check_sizes(q_THC, kv_SC, rows_TK, latent_dim)
    native.check_shape("grad_THL", grad_THL, *q_THC.shape[:2], latent_dim)
    grad_THL, q_THC, kv_SC, rows_TK = (x.contiguous() for x in (grad_THL, q_THC, kv_SC, rows_TK))
    wide, width = torch.promote_types(kv_SC.dtype, torch.float32), kv_SC.shape[1]
    dq_THC = torch.empty_like(q_THC)
    dkv_SP = torch.zeros(len(kv_SC), native.padded(width, wide), dtype=wide)
    sizes = _sizes(q_THC, kv_SC, rows_TK, latent_dim, scale)
    run(*native.pointers(grad_THL, q_THC, kv_SC, rows_TK, dq_THC, dkv_SP), *sizes)
    return dq_THC, dkv_SP[:, :width].to(kv_SC.dtype)


@_backward.register_fake
def _(grad_THL: Tensor, q_THC: Tensor, kv_SC: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q_THC.new_empty(q_THC.shape), kv_SC.new_empty(kv_SC.shape)


register_gradients(_forward, _backward)


def sparse_mla(
    q_THC: Tensor, kv_SC: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.sparse_mla`."""
    if native.direct(q_THC, kv_SC):
        rows_TK = _key_rows(indices_TK, cu_query, cu_key, len(q_THC), len(kv_SC), pages)
        return _attend(q_THC, kv_SC, rows_TK, latent_dim, scale)
    out_THL: Tensor = _forward(q_THC, kv_SC, key_rows(indices_TK, cu_query, cu_key, pages), latent_dim, scale)
    return out_THL
