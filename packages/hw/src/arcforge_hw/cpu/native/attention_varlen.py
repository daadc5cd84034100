"""Causal attention inside short segments in C++; longer ones are left to tiled products.

Of the forward pass only a number per query and head is kept. Tiles of a few hundred keys are too small for calls of
torch's operators: with segments of 200 tokens and heads of 32 these take most of the time.

Shapes: T query tokens, S keys, H heads, G key/value heads, K key size, V value size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_hw.cpu import attention_varlen as tiled
from arcforge_hw.cpu.native import POINTER, REAL, SIZE, check_dtypes, function, pointers, suffix

SHORT = 512
"""Keys of a segment up to which a thread takes it as a whole."""
SIZES = (SIZE, SIZE, SIZE, SIZE, SIZE, REAL, SIZE)


def _sizes(q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, scale: float) -> tuple[Any, ...]:
    sizes = q_THK.shape[1], k_SGK.shape[1], q_THK.shape[2], v_SGV.shape[2]
    return len(cu_query) - 1, *sizes, scale, torch.get_num_threads()


def _check(q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor) -> None:
    check_dtypes(q_THK, k_SGK, v_SGV)
    if int(cu_query[-1]) != len(q_THK) or int(cu_key[-1]) > min(len(k_SGK), len(v_SGV)):
        found = f"{len(q_THK)} tokens, {len(k_SGK)} keys, {len(v_SGV)} values"
        raise ValueError(f"segments of {cu_query.tolist()} and {cu_key.tolist()}: {found}")


@torch.library.custom_op("arcforge_native::attention_varlen", mutates_args=())
def _forward(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns the output [T, H, V] and the logarithm of each softmax's sum [T, H], fp32 or wider."""
    run = function(f"arcforge_attention_{suffix(q_THK.dtype)}", (*[POINTER] * 7, *SIZES))
    _check(q_THK, k_SGK, v_SGV, cu_query, cu_key)
    q, k, v, queries, keys = (x.contiguous() for x in (q_THK, k_SGK, v_SGV, cu_query.long(), cu_key.long()))
    out_THV = q.new_empty(*q.shape[:2], v.shape[-1])
    lse_TH = q.new_empty(q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32))
    run(*pointers(q, k, v, queries, keys, out_THV, lse_TH), *_sizes(q, k, v, queries, scale))
    return out_THV, lse_TH


@_forward.register_fake
def _(q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q_THK.dtype, torch.float32)
    return q_THK.new_empty(*q_THK.shape[:2], v_SGV.shape[-1]), q_THK.new_empty(q_THK.shape[:2], dtype=wide)


@torch.library.custom_op("arcforge_native::attention_varlen_backward", mutates_args=())
def _backward(
    grad_THV: Tensor,
    q_THK: Tensor,
    k_SGK: Tensor,
    v_SGV: Tensor,
    lse_TH: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of q, k and v."""
    run = function(f"arcforge_attention_backward_{suffix(q_THK.dtype)}", (*[POINTER] * 10, *SIZES))
    _check(q_THK, k_SGK, v_SGV, cu_query, cu_key)
    check_dtypes(q_THK, grad_THV)
    grad, q, k, v, lse = (x.contiguous() for x in (grad_THV, q_THK, k_SGK, v_SGV, lse_TH))
    queries, keys = cu_query.long(), cu_key.long()
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))  # zeros: keys may lie behind the last segment's
    run(*pointers(grad, q, k, v, lse, queries, keys, dq, dk, dv), *_sizes(q, k, v, queries, scale))
    return dq, dk, dv


@_backward.register_fake
def _(grad_THV: Tensor, q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q_THK.new_empty(q_THK.shape), k_SGK.new_empty(k_SGK.shape), v_SGV.new_empty(v_SGV.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q_THK, k_SGK, v_SGV, cu_query, cu_key, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q_THK, k_SGK, v_SGV, output[1], cu_query, cu_key)


def _gradients(ctx: Any, grad_THV: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad_THV is None:
        return (None,) * 6
    return *_backward(grad_THV, *ctx.saved_tensors, ctx.scale), None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def attention_varlen(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float
) -> Tensor:
    """See `arcforge_core.ops.reference.attention_varlen`."""
    if torch.compiler.is_compiling() or max(cu_key.diff().tolist()) > SHORT:
        return tiled.attention_varlen(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)
    out_THV: Tensor = _forward(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)[0]
    return out_THV
