"""Absorbed attention to selected keys in C++: a query's keys are gathered once, forward and backward.

Gradients of entries are added in the order of the queries whatever the number of threads.

Shapes: T query tokens, S keys, H heads, C latent plus rope, L latent, K selected keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_hw.cpu.native import (
    POINTER,
    REAL,
    SIZE,
    check_dtypes,
    check_rows,
    check_shape,
    direct,
    function,
    padded,
    pointers,
    suffix,
)
from arcforge_hw.torch_ops.sparse_mla import key_rows, register_gradients

SIZES = (SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, REAL, SIZE)


def _check_sizes(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int) -> None:
    check_shape("kv_SC", kv_SC, len(kv_SC), q_THC.shape[-1])
    check_shape("indices_TK", rows_TK, len(q_THC), rows_TK.shape[-1])
    if not 0 < latent_dim <= kv_SC.shape[1]:
        raise ValueError(f"latent_dim={latent_dim} of entries of {kv_SC.shape[1]}")


def _sizes(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float) -> tuple[Any, ...]:
    tokens, heads, width = q_THC.shape
    return tokens, len(kv_SC), heads, rows_TK.shape[1], width, latent_dim, scale, torch.get_num_threads()


def _attend(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float) -> Tensor:
    run = function(f"arcforge_sparse_mla_{suffix(q_THC.dtype)}", (*[POINTER] * 4, *SIZES))
    check_dtypes(q_THC, kv_SC)
    _check_sizes(q_THC, kv_SC, rows_TK, latent_dim)
    check_rows(rows_TK, len(kv_SC))
    q_THC, kv_SC, rows_TK = q_THC.contiguous(), kv_SC.contiguous(), rows_TK.contiguous()
    out_THL = q_THC.new_empty(*q_THC.shape[:2], latent_dim)
    run(*pointers(q_THC, kv_SC, rows_TK, out_THL), *_sizes(q_THC, kv_SC, rows_TK, latent_dim, scale))
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
    run = function(f"arcforge_sparse_mla_backward_{suffix(q_THC.dtype)}", (*[POINTER] * 6, *SIZES))
    check_dtypes(q_THC, kv_SC, grad_THL)
    _check_sizes(q_THC, kv_SC, rows_TK, latent_dim)
    check_shape("grad_THL", grad_THL, *q_THC.shape[:2], latent_dim)
    grad_THL, q_THC, kv_SC, rows_TK = (x.contiguous() for x in (grad_THL, q_THC, kv_SC, rows_TK))
    wide, width = torch.promote_types(kv_SC.dtype, torch.float32), kv_SC.shape[1]
    dq_THC = torch.empty_like(q_THC)
    dkv_SP = torch.zeros(len(kv_SC), padded(width, wide), dtype=wide)
    sizes = _sizes(q_THC, kv_SC, rows_TK, latent_dim, scale)
    run(*pointers(grad_THL, q_THC, kv_SC, rows_TK, dq_THC, dkv_SP), *sizes)
    return dq_THC, dkv_SP[:, :width].to(kv_SC.dtype)


@_backward.register_fake
def _(grad_THL: Tensor, q_THC: Tensor, kv_SC: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q_THC.new_empty(q_THC.shape), kv_SC.new_empty(kv_SC.shape)


register_gradients(_forward, _backward)


def sparse_mla(
    q_THC: Tensor,
    kv_SC: Tensor,
    indices_TK: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    latent_dim: int,
    scale: float,
) -> Tensor:
    """See `arcforge_core.ops.reference.sparse_mla`."""
    run = _attend if direct(q_THC, kv_SC) else _forward
    out_THL: Tensor = run(q_THC, kv_SC, key_rows(indices_TK, cu_query, cu_key), latent_dim, scale)
    return out_THL
