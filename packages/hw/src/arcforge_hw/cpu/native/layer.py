"""What surrounds attention while few tokens are decoded, several ops in one call of C++.

Shapes: T tokens, D hidden, Q query latent, H heads, J rows of all heads, C latent plus rope, L latent, I index heads,
K index head size, E experts, F expert width. Where sizes are no whole vectors the reference runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu.native import (
    POINTER,
    REAL,
    SIZE,
    check_dtypes,
    check_shape,
    direct,
    function,
    pointers,
    suffix,
    whole_vectors,
)

ARGUMENTS = {
    "mla_prolog": (*[POINTER] * 12, *[SIZE] * 8, REAL, SIZE),
    "mla_epilog": (*[POINTER] * 4, *[SIZE] * 7),
    "index_prolog": (*[POINTER] * 12, *[SIZE] * 6, REAL, SIZE),
    "mlp": (*[POINTER] * 5, *[SIZE] * 4),
    "moe": (*[POINTER] * 9, *[SIZE] * 6, REAL, SIZE),
}


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Callable[..., None]:
    return function(f"arcforge_{name}_{suffix(dtype)}", ARGUMENTS[name])


def _served(x_TD: Tensor, *widths: int) -> bool:
    """Whether C++ can be called: there are tokens, nothing is traced, and rows of these widths need no padding."""
    return len(x_TD) > 0 and direct(x_TD) and all(whole_vectors(width, x_TD.dtype) for width in widths)


def mla_prolog(
    x_TD: Tensor,
    q_a_QD: Tensor,
    q_norm_Q: Tensor,
    q_b_JQ: Tensor,
    kv_a_CD: Tensor,
    kv_norm_L: Tensor,
    kv_b_JL: Tensor,
    cos_TF: Tensor,
    sin_TF: Tensor,
    heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `arcforge_core.ops.reference.mla_prolog`."""
    (tokens, hidden), query, latent, pairs = x_TD.shape, len(q_a_QD), len(kv_norm_L), cos_TF.shape[1]
    given = (x_TD, q_a_QD, q_norm_Q, q_b_JQ, kv_a_CD, kv_norm_L, kv_b_JL, cos_TF.to(x_TD.dtype), sin_TF.to(x_TD.dtype))
    if not _served(x_TD, hidden, query, latent):
        return reference.mla_prolog(*given[:7], cos_TF, sin_TF, heads, eps)
    nope, width = len(q_b_JQ) // heads - 2 * pairs, latent + 2 * pairs
    value = len(kv_b_JL) // heads - nope
    check_dtypes(*given)
    check_shape("q_a_QD", q_a_QD, query, hidden)
    check_shape("q_norm_Q", q_norm_Q, query)
    check_shape("q_b_JQ", q_b_JQ, heads * (nope + 2 * pairs), query)
    check_shape("kv_a_CD", kv_a_CD, width, hidden)
    check_shape("kv_b_JL", kv_b_JL, heads * (nope + value), latent)
    check_shape("cos_TF", cos_TF, tokens, pairs)
    check_shape("sin_TF", sin_TF, tokens, pairs)
    if min(nope, value) < 0:
        raise ValueError(f"heads of {nope} and {value} values beside {2 * pairs} rotated ones")
    q_TQ, q_THC = x_TD.new_empty(tokens, query), x_TD.new_empty(tokens, heads, width)
    entry_TC, tensors = x_TD.new_empty(tokens, width), [x.contiguous() for x in given]
    _function("mla_prolog", x_TD.dtype)(
        *pointers(*tensors, q_TQ, q_THC, entry_TC),
        tokens, hidden, query, heads, nope, 2 * pairs, value, latent, eps, torch.get_num_threads(),
    )  # fmt: skip
    return q_TQ, q_THC, entry_TC


def mla_epilog(out_THL: Tensor, kv_b_JL: Tensor, o_DJ: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.mla_epilog`."""
    (tokens, heads, latent), (hidden, inner) = out_THL.shape, o_DJ.shape
    if not _served(out_THL, latent, inner):
        return reference.mla_epilog(out_THL, kv_b_JL, o_DJ)
    value, up = inner // heads, len(kv_b_JL) // heads
    check_dtypes(out_THL, kv_b_JL, o_DJ)
    check_shape("kv_b_JL", kv_b_JL, heads * up, latent)
    check_shape("o_DJ", o_DJ, hidden, heads * value)
    if value > up:
        raise ValueError(f"kv_b_JL has {up} rows a head, and values have {value}")
    out_TD = out_THL.new_empty(tokens, hidden)
    out_THL, kv_b_JL, o_DJ = out_THL.contiguous(), kv_b_JL.contiguous(), o_DJ.contiguous()
    _function("mla_epilog", out_THL.dtype)(
        *pointers(out_THL, kv_b_JL, o_DJ, out_TD),
        tokens, hidden, heads, up - value, value, latent, torch.get_num_threads(),
    )  # fmt: skip
    return out_TD


def index_prolog(
    x_TD: Tensor,
    q_TQ: Tensor,
    wq_b_JQ: Tensor,
    wk_KD: Tensor,
    norm_K: Tensor,
    norm_bias_K: Tensor,
    weights_ID: Tensor,
    cos_TF: Tensor,
    sin_TF: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `arcforge_core.ops.reference.index_prolog`."""
    (tokens, hidden), query, heads, width, pairs = (
        x_TD.shape, q_TQ.shape[1], len(weights_ID), len(wk_KD), cos_TF.shape[1],
    )  # fmt: skip
    given = (x_TD, q_TQ, wq_b_JQ, wk_KD, norm_K, norm_bias_K, weights_ID)
    if not _served(x_TD, hidden, query):
        return reference.index_prolog(*given, cos_TF, sin_TF, eps)
    cos_TF, sin_TF = cos_TF.to(x_TD.dtype), sin_TF.to(x_TD.dtype)
    check_dtypes(*given)
    check_shape("q_TQ", q_TQ, tokens, query)
    check_shape("wq_b_JQ", wq_b_JQ, heads * width, query)
    check_shape("wk_KD", wk_KD, width, hidden)
    check_shape("norm_K", norm_K, width)
    check_shape("norm_bias_K", norm_bias_K, width)
    check_shape("weights_ID", weights_ID, heads, hidden)
    check_shape("cos_TF", cos_TF, tokens, pairs)
    check_shape("sin_TF", sin_TF, tokens, pairs)
    if 2 * pairs > width:
        raise ValueError(f"{2 * pairs} rotated values in index heads of {width}")
    q_TIK, key_TK, w_TI = (x_TD.new_empty(tokens, *shape) for shape in ((heads, width), (width,), (heads,)))
    tensors = [x.contiguous() for x in (*given, cos_TF, sin_TF)]
    _function("index_prolog", x_TD.dtype)(
        *pointers(*tensors, q_TIK, key_TK, w_TI),
        tokens, hidden, query, heads, width, 2 * pairs, eps, torch.get_num_threads(),
    )  # fmt: skip
    return q_TIK, key_TK, w_TI


def mlp(x_TD: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.mlp`."""
    (tokens, hidden), width = x_TD.shape, len(gate_FD)
    if not _served(x_TD, hidden, width):
        return reference.mlp(x_TD, gate_FD, up_FD, down_DF)
    check_dtypes(x_TD, gate_FD, up_FD, down_DF)
    check_shape("gate_FD", gate_FD, width, hidden)
    check_shape("up_FD", up_FD, width, hidden)
    check_shape("down_DF", down_DF, hidden, width)
    tensors = [x.contiguous() for x in (x_TD, gate_FD, up_FD, down_DF)]
    out_TD = torch.empty_like(tensors[0])
    run = _function("mlp", x_TD.dtype)
    run(*pointers(*tensors, out_TD), tokens, hidden, width, torch.get_num_threads())
    return out_TD


def moe(
    x_TD: Tensor,
    router_ED: Tensor,
    bias_E: Tensor,
    gate_up_EFD: Tensor,
    down_EDF: Tensor,
    shared_gate_FD: Tensor,
    shared_up_FD: Tensor,
    shared_down_DF: Tensor,
    chosen: int,
    scale: float,
) -> Tensor:
    """See `arcforge_core.ops.reference.moe`; reads only the experts that are chosen."""
    (tokens, hidden), (experts, _, width), shared = x_TD.shape, down_EDF.shape, len(shared_gate_FD)
    weights = (gate_up_EFD, down_EDF, shared_gate_FD, shared_up_FD, shared_down_DF)
    if not _served(x_TD, hidden, width, shared):
        return reference.moe(x_TD, router_ED, bias_E, *weights, chosen, scale)
    check_dtypes(x_TD, router_ED, *weights)
    check_shape("router_ED", router_ED, experts, hidden)
    check_shape("bias_E", bias_E, experts)
    check_shape("gate_up_EFD", gate_up_EFD, experts, 2 * width, hidden)
    check_shape("down_EDF", down_EDF, experts, hidden, width)
    check_shape("shared_gate_FD", shared_gate_FD, shared, hidden)
    check_shape("shared_up_FD", shared_up_FD, shared, hidden)
    check_shape("shared_down_DF", shared_down_DF, hidden, shared)
    if not 0 < chosen <= experts:
        raise ValueError(f"chosen must be from 1 to {experts} experts, not {chosen}")
    tensors = [x.contiguous() for x in (x_TD, router_ED, bias_E.float(), *weights)]
    out_TD = torch.empty_like(tensors[0])
    _function("moe", x_TD.dtype)(
        *pointers(*tensors, out_TD), tokens, hidden, experts, chosen, width, shared, scale, torch.get_num_threads()
    )
    return out_TD
