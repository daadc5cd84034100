"""What surrounds attention when few tokens are decoded: products that read each weight once, norms, rotations, experts.

A call of C takes a few microseconds, an op of torch about as many for each of its parts; a decoding step has hundreds.
These serve where nothing is traced or differentiated; else, and for many rows, torch's products run.

Shapes: T rows, K inputs, N outputs, H heads, R rotated width, F = R / 2, D hidden, E experts, f expert width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_hw.cpu import rms_norm as differentiable
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
from arcforge_hw.torch_ops import moe_experts as grouped

FEW_ROWS = 16
"""Rows up to which reading the weights is the work; with more, torch's products reuse them better."""
LINEAR = (POINTER, POINTER, POINTER, POINTER, SIZE, SIZE, SIZE, SIZE)
EXPERTS = (*[POINTER] * 6, SIZE, SIZE, SIZE, SIZE, SIZE)
RMS_NORM = (POINTER, SIZE, POINTER, POINTER, SIZE, SIZE, REAL, SIZE)
ROPE = (POINTER, SIZE, SIZE, POINTER, POINTER, POINTER, SIZE, SIZE, SIZE, REAL, SIZE)


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Callable[..., None]:
    arguments = {"linear": LINEAR, "rms_norm": RMS_NORM, "rope": ROPE, "experts": EXPERTS}[name]
    return function(f"arcforge_{name}_{suffix(dtype)}", arguments)


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """See `arcforge_core.ops.reference.linear`."""
    (outputs, inputs), dtype = weight_NK.shape, x.dtype
    rows = x.numel() // inputs
    given = (weight_NK,) if bias_N is None else (weight_NK, bias_N)
    few = 0 < rows <= FEW_ROWS and x.shape[-1] == inputs and whole_vectors(inputs, dtype) and direct(x, *given)
    few = few and (bias_N is None or bias_N.shape == (outputs,))
    if not (few and all(p.dtype == dtype and p.is_contiguous() for p in given)):
        return F.linear(x, weight_NK, bias_N)  # also where sizes do not fit: it says so
    x, out = x.contiguous(), x.new_empty(*x.shape[:-1], outputs)
    bias_at = 0 if bias_N is None else bias_N.data_ptr()
    run = _function("linear", dtype)
    run(x.data_ptr(), weight_NK.data_ptr(), bias_at, out.data_ptr(), rows, inputs, outputs, torch.get_num_threads())
    return out


def moe_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.moe_experts`; reads only the experts that are chosen."""
    (experts, hidden, width), (tokens, chosen) = down_EDF.shape, expert_TK.shape
    inputs = (x_TD, gate_up_EFD, down_EDF, gate_TK)
    few = 0 < tokens * chosen <= experts and x_TD.dtype in (torch.float32, torch.bfloat16)
    few = few and whole_vectors(hidden, x_TD.dtype) and whole_vectors(width, x_TD.dtype)
    if not (few and direct(*inputs)):
        return grouped.moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
    lowest, highest = torch.aminmax(expert_TK)
    if int(lowest) < 0 or int(highest) >= experts:
        raise ValueError(f"expert numbers must be from 0 to {experts - 1}, got {int(lowest)} to {int(highest)}")
    gate_TK = gate_TK.float()
    check_dtypes(x_TD, gate_up_EFD, down_EDF)
    check_shape("x_TD", x_TD, tokens, hidden)
    check_shape("gate_up_EFD", gate_up_EFD, experts, 2 * width, hidden)
    check_shape("gate_TK", gate_TK, tokens, chosen)
    expert_TK = expert_TK.long()
    tensors = [x.contiguous() for x in (x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)]
    out_TD = torch.empty_like(tensors[0])
    run = _function("experts", x_TD.dtype)
    run(*pointers(*tensors, out_TD), tokens, chosen, hidden, width, torch.get_num_threads())
    return out_TD


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `arcforge_core.ops.reference.rms_norm`."""
    if not direct(x, weight):
        return differentiable.rms_norm(x, weight, eps)
    check_shape("weight", weight, x.shape[-1])
    x_TD, weight = x.reshape(-1, x.shape[-1]), weight.to(x.dtype).contiguous()
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    out = x.new_empty(x.shape)
    run, threads = _function("rms_norm", x.dtype), torch.get_num_threads()
    run(x_TD.data_ptr(), x_TD.stride(0), weight.data_ptr(), out.data_ptr(), *x_TD.shape, eps, threads)
    return out


def _turn(x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor, sign: float) -> Tensor:
    tokens, heads, width = x_THR.shape
    x_THR = x_THR if x_THR.stride(2) == 1 else x_THR.contiguous()
    wide = torch.promote_types(x_THR.dtype, torch.float32)
    cos_TF, sin_TF = cos_TF.to(wide).contiguous(), sin_TF.to(wide).contiguous()
    if width % 2:
        raise ValueError(f"pairs are rotated: the width must be even, not {width}")
    check_shape("cos_TF", cos_TF, tokens, width // 2)
    check_shape("sin_TF", sin_TF, tokens, width // 2)
    out_THR = x_THR.new_empty(x_THR.shape)
    _function("rope", x_THR.dtype)(
        x_THR.data_ptr(), x_THR.stride(0), x_THR.stride(1), cos_TF.data_ptr(), sin_TF.data_ptr(), out_THR.data_ptr(),
        tokens, heads, width, sign, torch.get_num_threads(),
    )  # fmt: skip
    return out_THR


_rope = torch.library.custom_op("arcforge_native::rope", _turn, mutates_args=())


@_rope.register_fake
def _(x_THR: Tensor, *_: Any) -> Tensor:
    return x_THR.new_empty(x_THR.shape)


def _keep_tables(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos_TF, sin_TF, ctx.sign = inputs
    ctx.save_for_backward(cos_TF, sin_TF)


def _turn_back(ctx: Any, grad_THR: Tensor) -> tuple[Tensor | None, ...]:
    return _rope(grad_THR, *ctx.saved_tensors, -ctx.sign), None, None, None


_rope.register_autograd(_turn_back, setup_context=_keep_tables)


def rope(x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.rope`; the tables get no gradient."""
    out_THR: Tensor = (_turn if direct(x_THR) else _rope)(x_THR, cos_TF, sin_TF, 1.0)
    return out_THR
