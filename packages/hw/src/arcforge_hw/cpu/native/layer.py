"""What surrounds attention while few tokens are decoded, several ops in one call of C++.

Products that may be quantised are calls of their own. Where sizes are no whole vectors the reference runs.

Shapes: T tokens, D hidden, Q query latent, H heads, J rows of all heads, C latent plus rope, L latent, I index heads,
K index head size, E experts, F expert width.
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
    "mla_prolog": (*[POINTER] * 9, *[SIZE] * 5, REAL, SIZE),
    "mla_absorb": (*[POINTER] * 5, *[SIZE] * 7),
    "mla_epilog": (*[POINTER] * 3, *[SIZE] * 6),
    "index_prolog": (*[POINTER] * 11, *[SIZE] * 5, REAL, SIZE),
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
    kv_a_CD: Tensor,
    kv_norm_L: Tensor,
    cos_TF: Tensor,
    sin_TF: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """See `arcforge_core.ops.reference.mla_prolog`."""
    (tokens, hidden), query, latent, pairs = x_TD.shape, len(q_a_QD), len(kv_norm_L), cos_TF.shape[1]
    given = (x_TD, q_a_QD, q_norm_Q, kv_a_CD, kv_norm_L)
    if not _served(x_TD, hidden):
        return reference.mla_prolog(*given, cos_TF, sin_TF, eps)
    check_dtypes(*given)
    check_shape("q_a_QD", q_a_QD, query, hidden)
    check_shape("q_norm_Q", q_norm_Q, query)
    check_shape("kv_a_CD", kv_a_CD, latent + 2 * pairs, hidden)
    tables = _tables(cos_TF, sin_TF, tokens, x_TD.dtype)
    q_TQ, entry_TC = x_TD.new_empty(tokens, query), x_TD.new_empty(tokens, latent + 2 * pairs)
    tensors = [x.contiguous() for x in (*given, *tables)]
    _function("mla_prolog", x_TD.dtype)(
        *pointers(*tensors, q_TQ, entry_TC), tokens, hidden, query, 2 * pairs, latent, eps, torch.get_num_threads()
    )
    return q_TQ, entry_TC


def _tables(cos_TF: Tensor, sin_TF: Tensor, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    check_shape("cos_TF", cos_TF, tokens, cos_TF.shape[1])
    check_shape("sin_TF", sin_TF, tokens, cos_TF.shape[1])
    return cos_TF.to(dtype), sin_TF.to(dtype)


def mla_absorb(q_TJ: Tensor, kv_b_JL: Tensor, cos_TF: Tensor, sin_TF: Tensor, heads: int) -> Tensor:
    """See `arcforge_core.ops.reference.mla_absorb`."""
    (tokens, rows), (up, latent), rotary = q_TJ.shape, kv_b_JL.shape, 2 * cos_TF.shape[1]
    if not _served(q_TJ, latent):
        return reference.mla_absorb(q_TJ, kv_b_JL, cos_TF, sin_TF, heads)
    check_dtypes(q_TJ, kv_b_JL)
    nope = rows // heads - rotary
    value = up // heads - nope
    check_shape("q_TJ", q_TJ, tokens, heads * (nope + rotary))
    check_shape("kv_b_JL", kv_b_JL, heads * (nope + value), latent)
    if min(nope, value) < 0:
        raise ValueError(f"heads of {nope} and {value} values beside {rotary} rotated ones")
    tensors = [x.contiguous() for x in (q_TJ, kv_b_JL, *_tables(cos_TF, sin_TF, tokens, q_TJ.dtype))]
    q_THC = q_TJ.new_empty(tokens, heads, latent + rotary)
    _function("mla_absorb", q_TJ.dtype)(
        *pointers(*tensors, q_THC), tokens, heads, nope, rotary, value, latent, torch.get_num_threads()
    )
    return q_THC


def mla_epilog(out_THL: Tensor, kv_b_JL: Tensor, value: int) -> Tensor:
    """See `arcforge_core.ops.reference.mla_epilog`."""
    tokens, heads, latent = out_THL.shape
    if not _served(out_THL, latent):
        return reference.mla_epilog(out_THL, kv_b_JL, value)
    up = len(kv_b_JL) // heads
    check_dtypes(out_THL, kv_b_JL)
    check_shape("kv_b_JL", kv_b_JL, heads * up, latent)
    if not 0 < value <= up:
        raise ValueError(f"kv_b_JL has {up} rows a head, and values have {value}")
    values_TJ = out_THL.new_empty(tokens, heads * value)
    out_THL, kv_b_JL = out_THL.contiguous(), kv_b_JL.contiguous()
    _function("mla_epilog", out_THL.dtype)(
        *pointers(out_THL, kv_b_JL, values_TJ), tokens, heads, up - value, value, latent, torch.get_num_threads()
    )
    return values_TJ


def index_prolog(
    x_TD: Tensor,
    q_TJ: Tensor,
    wk_KD: Tensor,
    norm_K: Tensor,
    norm_bias_K: Tensor,
    weights_ID: Tensor,
    cos_TF: Tensor,
    sin_TF: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `arcforge_core.ops.reference.index_prolog`."""
    (tokens, hidden), heads, width, rotary = x_TD.shape, len(weights_ID), len(wk_KD), 2 * cos_TF.shape[1]
    given = (x_TD, q_TJ, wk_KD, norm_K, norm_bias_K, weights_ID)
    if not _served(x_TD, hidden):
        return reference.index_prolog(*given, cos_TF, sin_TF, eps)
    check_dtypes(*given)
    check_shape("q_TJ", q_TJ, tokens, heads * width)
    check_shape("wk_KD", wk_KD, width, hidden)
    check_shape("norm_K", norm_K, width)
    check_shape("norm_bias_K", norm_bias_K, width)
    check_shape("weights_ID", weights_ID, heads, hidden)
    if rotary > width:
        raise ValueError(f"{rotary} rotated values in index heads of {width}")
    q_TIK, key_TK, w_TI = (x_TD.new_empty(tokens, *shape) for shape in ((heads, width), (width,), (heads,)))
    tensors = [x.contiguous() for x in (*given, *_tables(cos_TF, sin_TF, tokens, x_TD.dtype))]
    _function("index_prolog", x_TD.dtype)(
        *pointers(*tensors, q_TIK, key_TK, w_TI), tokens, hidden, heads, width, rotary, eps, torch.get_num_threads()
    )
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
