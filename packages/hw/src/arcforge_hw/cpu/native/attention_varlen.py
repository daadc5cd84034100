"""Causal attention inside segments in C++, over all visible keys or over selected ones.

The forward pass keeps one number per query and head. Tiles of a few hundred keys are too small for torch's operators:
with segments of 200 tokens and heads of 32 the calls take most of the time. One thread computes a segment and key/value
head, forward also a part of them. For the longest segments, and for long ones that would leave most of many threads
idle, tiled products run instead.

Shapes: T query tokens, S keys, H heads, G key/value heads, K key size, V value size, N selected keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_hw.cpu import attention_varlen as tiled
from arcforge_hw.cpu import native

SHORT, LONGEST = 512, 8192
"""Maximum keys of a segment, of few and of many segments and key/value heads. With 16,384 keys tiled products are as
fast; with 8,192 and heads of 64 a thread needs 13 MB."""
MANY = 4
"""Segments and key/value heads. It is no number of threads, on which results would depend."""
_attention = native.by_dtype("attention", "8p 6i d i")
_attention_backward = native.by_dtype("attention_backward", "11p 6i d i")


def _sizes(q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, selected: int, scale: float) -> Any:
    sizes = q_THK.shape[1], k_SGK.shape[1], q_THK.shape[2], v_SGV.shape[2]
    return len(cu_query) - 1, *sizes, selected, scale, torch.get_num_threads()


def _check(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, indices_TN: Tensor | None
) -> None:
    native.check_dtypes(q_THK, k_SGK, v_SGV)
    (heads, width), (keys, groups) = q_THK.shape[1:], k_SGK.shape[:2]
    native.check_shape("k_SGK", k_SGK, keys, groups, width)
    native.check_shape("v_SGV", v_SGV, keys, groups, v_SGV.shape[-1])
    if heads % groups:
        raise ValueError(f"{heads} heads cannot share {groups} key/value heads evenly")
    native.check_segments(cu_query, cu_key, len(q_THK), keys)
    if indices_TN is None:
        return
    if len(indices_TN) != len(q_THK) or indices_TN.dtype != torch.int64:
        raise ValueError(f"indices_TN {list(indices_TN.shape)}: must be int64 with {len(q_THK)} rows")
    query_N, key_N = cu_query.diff().long(), cu_key.diff().long()
    own_T = torch.arange(len(q_THK)) - (cu_query[:-1].long()).repeat_interleave(query_N)
    last_T = own_T + (key_N - query_N).repeat_interleave(query_N)
    if bool((indices_TN.amax(1) > last_T).any()):
        raise IndexError("indices_TN selects a key that its query does not see")


def _pointer(indices_TN: Tensor | None) -> int:
    return 0 if indices_TN is None else native.pointers(indices_TN)[0]


@torch.library.custom_op("arcforge_native::attention_varlen", mutates_args=())
def _forward(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, indices_TN: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the output [T, H, V] and the logarithm of each softmax's sum [T, H], fp32 or wider."""
    run = _attention(q_THK.dtype)
    _check(q_THK, k_SGK, v_SGV, cu_query, cu_key, indices_TN)
    q, k, v, queries, keys = (x.contiguous() for x in (q_THK, k_SGK, v_SGV, cu_query.long(), cu_key.long()))
    indices = None if indices_TN is None else indices_TN.contiguous()
    out_THV = q.new_empty(*q.shape[:2], v.shape[-1])
    lse_TH = q.new_empty(q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32))
    sizes = _sizes(q, k, v, queries, 0 if indices is None else indices.shape[1], scale)
    run(*native.pointers(q, k, v, queries, keys), _pointer(indices), *native.pointers(out_THV, lse_TH), *sizes)
    return out_THV, lse_TH


@_forward.register_fake
def _(q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q_THK.dtype, torch.float32)
    return q_THK.new_empty(*q_THK.shape[:2], v_SGV.shape[-1]), q_THK.new_empty(q_THK.shape[:2], dtype=wide)


@torch.library.custom_op("arcforge_native::attention_varlen_backward", mutates_args=())
def _backward(
    grad_THV: Tensor, q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, lse_TH: Tensor, cu_query: Tensor, cu_key: Tensor,
    indices_TN: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of q, k and v."""
    run = _attention_backward(q_THK.dtype)
    _check(q_THK, k_SGK, v_SGV, cu_query, cu_key, indices_TN)
    native.check_dtypes(q_THK, grad_THV)
    native.check_shape("grad_THV", grad_THV, *q_THK.shape[:2], v_SGV.shape[-1])
    grad, q, k, v, lse = (x.contiguous() for x in (grad_THV, q_THK, k_SGK, v_SGV, lse_TH))
    queries, keys = cu_query.long(), cu_key.long()
    indices = None if indices_TN is None else indices_TN.contiguous()
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    for x in (dk, dv):
        x[int(keys[-1]) :].zero_()  # keys after the last segment's
    sizes = _sizes(q, k, v, queries, 0 if indices is None else indices.shape[1], scale)
    run(*native.pointers(grad, q, k, v, lse, queries, keys), _pointer(indices), *native.pointers(dq, dk, dv), *sizes)
    return dq, dk, dv


@_backward.register_fake
def _(grad_THV: Tensor, q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q_THK.new_empty(q_THK.shape), k_SGK.new_empty(k_SGK.shape), v_SGV.new_empty(v_SGV.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    q_THK, k_SGK, v_SGV, *lengths = tensors
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q_THK, k_SGK, v_SGV, output[1], *lengths)


def _gradients(ctx: Any, grad_THV: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad_THV is None:
        return (None,) * 7
    return *_backward(grad_THV, *ctx.saved_tensors, ctx.scale), None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def attention_varlen(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float
) -> Tensor:
    """See `arcforge_core.ops.reference.attention_varlen`."""
    limit = LONGEST if (len(cu_key) - 1) * k_SGK.shape[1] >= MANY else SHORT
    if torch.compiler.is_compiling() or max(cu_key.diff().tolist()) > limit:
        return tiled.attention_varlen(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)
    out_THV: Tensor = _forward(q_THK, k_SGK, v_SGV, cu_query, cu_key, None, scale)[0]
    return out_THV


def selected_attention(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.selected_attention`."""
    out_THV: Tensor = _forward(q_THK, k_SGK, v_SGV, cu_query, cu_key, indices_TK, scale)[0]
    return out_THV
