"""RMSNorm, rotation and SwiGLU in Triton: one pass over memory each, forward and backward.

Shapes: T rows, D width, H heads, R rotated width, F = R / 2.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcforge_hw.cuda.launch import check, power_of_two, row_warps

BLOCK = 1024
"""Elements per program of an elementwise kernel."""
ROWS_OF_PARTIALS = 64
"""Programs of a norm's backward pass: each sums the weight's gradient over its own rows."""


@triton.jit
def rms_norm_forward(x, weight, out, rstd, stride, width, eps, BLOCK_D: tl.constexpr):
    """One row per program: computed in fp32, cast, then multiplied by the weight (spec 1.3)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    inside = column < width
    x_D = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x_D * x_D, axis=0) / width + eps)
    tl.store(rstd + row, scale)
    normed_D = (x_D * scale).to(out.dtype.element_ty)
    weight_D = tl.load(weight + column, mask=inside, other=0.0).to(out.dtype.element_ty)
    tl.store(out + row * width + column, normed_D * weight_D, mask=inside)


@triton.jit
def rms_norm_backward(grad, x, weight, rstd, dx, dweight, stride, rows, width, per_program, BLOCK_D: tl.constexpr):
    """Some rows per program, one after another; each program has its own row of `dweight`."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK_D)
    inside = column < width
    weight_D = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    dweight_D = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for step in range(0, per_program):
        row = (program * per_program + step).to(tl.int64)
        here = inside & (row < rows)
        x_D = tl.load(x + row * stride + column, mask=here, other=0.0).to(tl.float32)
        grad_D = tl.load(grad + row * width + column, mask=here, other=0.0).to(tl.float32)
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)
        scaled_D = grad_D * weight_D
        along = tl.sum(scaled_D * x_D, axis=0) * scale * scale / width
        tl.store(dx + row * width + column, ((scaled_D - x_D * along) * scale).to(dx.dtype.element_ty), mask=here)
        dweight_D += grad_D * x_D * scale
    tl.store(dweight + program * width + column, dweight_D, mask=inside)


@triton.jit
def rope_kernel(x, cos, sin, out, row_stride, head_stride, heads, pairs, sign, BLOCK_F: tl.constexpr):
    """One head of a row per program."""
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    f = tl.arange(0, BLOCK_F)
    inside = f < pairs
    at = x + row * row_stride + head * head_stride + 2 * f
    even, odd = (
        tl.load(at, mask=inside, other=0.0).to(tl.float32),
        tl.load(at + 1, mask=inside, other=0.0).to(tl.float32),
    )
    c = tl.load(cos + row * pairs + f, mask=inside, other=0.0)
    s = tl.load(sin + row * pairs + f, mask=inside, other=0.0) * sign
    to = out + (row * heads + head) * 2 * pairs + 2 * f
    tl.store(to, (even * c - odd * s).to(out.dtype.element_ty), mask=inside)
    tl.store(to + 1, (even * s + odd * c).to(out.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_forward(gate, up, out, size, BLOCK_N: tl.constexpr):
    """``silu(gate) * up`` of `BLOCK_N` elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = at < size
    g, u = tl.load(gate + at, mask=inside, other=0.0), tl.load(up + at, mask=inside, other=0.0)
    silu = g.to(tl.float32) * tl.sigmoid(g.to(tl.float32))
    tl.store(out + at, silu.to(out.dtype.element_ty) * u, mask=inside)


@triton.jit
def swiglu_backward(grad, gate, up, dgate, dup, size, BLOCK_N: tl.constexpr):
    """Both gradients of `BLOCK_N` elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = at < size
    go = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(g)
    tl.store(dup + at, (go * g * sigmoid).to(dup.dtype.element_ty), mask=inside)
    slope = sigmoid * (1.0 + g * (1.0 - sigmoid))
    tl.store(dgate + at, (go * u * slope).to(dgate.dtype.element_ty), mask=inside)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        check(x_TD, weight_D)
        x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
        rows, width = x_TD.shape
        out_TD, rstd_T = x_TD.new_empty(rows, width), x_TD.new_empty(rows, dtype=torch.float32)
        block = power_of_two(width)
        if rows:
            rms_norm_forward[(rows,)](
                x_TD, weight_D, out_TD, rstd_T, x_TD.stride(0), width, eps, BLOCK_D=block, num_warps=row_warps(block)
            )
        ctx.save_for_backward(x_TD, weight_D, rstd_T)
        return out_TD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x_TD, weight_D, rstd_T = ctx.saved_tensors
        rows, width = x_TD.shape
        dx_TD, programs = x_TD.new_empty(rows, width), min(rows, ROWS_OF_PARTIALS)
        dweight_PD = x_TD.new_zeros(max(programs, 1), width, dtype=torch.float32)
        if rows:
            rms_norm_backward[(programs,)](
                grads[0].contiguous(), x_TD, weight_D, rstd_T, dx_TD, dweight_PD, x_TD.stride(0), rows, width,
                -(-rows // programs), BLOCK_D=power_of_two(width), num_warps=row_warps(power_of_two(width)),
            )  # fmt: skip
        return dx_TD, dweight_PD.sum(0).to(weight_D.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `arcforge_core.ops.reference.rms_norm`."""
    out: Tensor = _RmsNorm.apply(x.reshape(-1, x.shape[-1]), weight, eps)
    return out.view(x.shape)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor, sign: float) -> Tensor:
        check(x_THR, cos_TF, sin_TF)
        x_THR = x_THR if x_THR.stride(2) == 1 else x_THR.contiguous()
        tokens, heads, width = x_THR.shape
        out_THR = x_THR.new_empty(x_THR.shape)
        if x_THR.numel():
            rope_kernel[(tokens * heads,)](
                x_THR, cos_TF.contiguous(), sin_TF.contiguous(), out_THR, x_THR.stride(0), x_THR.stride(1), heads,
                width // 2, sign, BLOCK_F=power_of_two(width // 2),
            )  # fmt: skip
        ctx.sign = sign
        ctx.save_for_backward(cos_TF, sin_TF)
        return out_THR

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        dx_THR: Tensor = _Rope.apply(grads[0], *ctx.saved_tensors, -ctx.sign)
        return dx_THR, None, None, None


def rope(x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.rope`; the tables get no gradient."""
    out_THR: Tensor = _Rope.apply(x_THR, cos_TF, sin_TF, 1.0)
    return out_THR


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        check(gate, up)
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        if out.numel():
            swiglu_forward[(-(-out.numel() // BLOCK),)](gate, up, out, out.numel(), BLOCK_N=BLOCK)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        if gate.numel():
            grid = (-(-gate.numel() // BLOCK),)
            swiglu_backward[grid](grads[0].contiguous(), gate, up, dgate, dup, gate.numel(), BLOCK_N=BLOCK)
        return dgate, dup


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.swiglu`."""
    out: Tensor = _Swiglu.apply(gate, up)
    return out
