"""Operators on rows: norm, rotation, SwiGLU, and rounding to int8. See `layouts` for the source.

Shapes: T tokens, N heads, D size of a head, W width of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_core.ops.quant import INT8, quantise
from arcforge_core.testing.fake_chip.npu.layouts import HALF
from arcforge_core.testing.fake_chip.vendor import need

FLOATS = (*HALF, torch.float32)


def rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Returns the norm, scaled in float32 and rounded once, and the reciprocal of each row's root mean square."""
    op = "npu_rms_norm"
    need(self.dtype in FLOATS and gamma.dtype == self.dtype, op, "self and gamma must have one floating dtype")
    need(gamma.ndim == 1 and gamma.shape[0] == self.shape[-1], op, "gamma must have the width of self")
    wide = self.float()
    rstd = (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (wide * rstd * gamma.float()).to(self.dtype), rstd


def rms_norm_backward(dy: Tensor, self: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient of self, and that of gamma in float32."""
    need(dy.dtype == self.dtype and dy.shape == self.shape, "npu_rms_norm_backward", "dy must be like self")
    x, g = self.float() * rstd, dy.float() * gamma.float()
    dx = rstd * (g - x * (g * x).mean(-1, keepdim=True))
    return dx.to(self.dtype), (dy.float() * x).flatten(0, -2).sum(0)


def rms_norm_gradients(given: dict[str, Any], outs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """As in ``derivatives.yaml``."""
    dx, dgamma = torch.ops.npu.npu_rms_norm_backward(grads[0], given["self"], given["gamma"], outs[1])
    return {"self": dx, "gamma": dgamma.to(given["gamma"].dtype)}


def _turned(x: Tensor, mode: str) -> Tensor:
    if mode == "half":
        one, two = x.chunk(2, -1)
        return torch.cat((-two, one), -1)
    return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)


def rotary_mul(self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None) -> Tensor:
    """Returns ``x * cos + turned(x) * sin`` for [T, N, D] with tables [T, 1, D]."""
    op = "npu_rotary_mul"
    need(rotary_mode in ("half", "interleave") and rotate is None, op, "rotary_mode must be half or interleave")
    need(self.dtype in FLOATS and r1.dtype == r2.dtype == self.dtype, op, "all must have one floating dtype")
    need(self.ndim == 3 and r1.shape == r2.shape == (len(self), 1, self.shape[2]), op, "tables must be [T, 1, D]")
    need(self.shape[1] < 1000 and self.shape[2] < 896 and self.shape[2] % 2 == 0, op, "N < 1000, even D < 896")
    need(bool(r1.abs().max() <= 1) and bool(r2.abs().max() <= 1), op, "tables must be within -1 and 1")
    return (self.float() * r1.float() + _turned(self.float(), rotary_mode) * r2.float()).to(self.dtype)


def rotary_mul_backward(
    grad: Tensor, self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of the input and of both tables."""
    need(grad.shape == self.shape and grad.dtype == self.dtype, "npu_rotary_mul_backward", "grad must be like self")
    dx = grad * r1 - _turned(grad * r2, rotary_mode)  # the transposed turn is the turn the other way
    return dx, (grad * self).sum(1, keepdim=True), (grad * _turned(self, rotary_mode)).sum(1, keepdim=True)


def rotary_mul_gradients(
    given: dict[str, Any], outs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """As in ``derivatives.yaml``; tables that need none get none."""
    inputs = (given["self"], given["r1"], given["r2"])
    found = torch.ops.npu.npu_rotary_mul_backward(grads[0].contiguous(), *inputs, given["rotary_mode"])
    return dict(zip(("self", "r1", "r2"), found, strict=True))


def swiglu(self: Tensor, dim: int = -1) -> Tensor:
    """Returns ``silu(first half) * second half``."""
    op = "npu_swiglu"
    need(self.dtype in FLOATS and self.shape[dim] % 2 == 0, op, "a floating tensor of two halves")
    gate, up = self.float().chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(self.dtype)


def swiglu_backward(grad_output: Tensor, self: Tensor, dim: int = -1) -> Tensor:
    """Returns the gradient of both halves."""
    gate, up = self.float().chunk(2, dim)
    share, g = gate.sigmoid(), grad_output.float()
    return torch.cat((g * up * share * (1 + gate * (1 - share)), g * gate * share), dim).to(self.dtype)


def swiglu_gradients(given: dict[str, Any], outs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """As in ``derivatives.yaml``."""
    return {"self": torch.ops.npu.npu_swiglu_backward(grads[0], given["self"], given["dim"])}


def dynamic_quant(
    input: Tensor, *, smooth_scales: Tensor | None = None, group_index: Tensor | None = None,
    dst_type: int | None = None, quant_mode: str = "pertoken", dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns int8 rows and their float32 scales, without the last axis."""
    op = "npu_dynamic_quant"
    need(input.dtype in HALF and input.ndim > 1, op, "rows must be bfloat16 or float16")
    plain = smooth_scales is None and group_index is None and dst_type in (None, 1) and quant_mode == "pertoken"
    need(plain, op, "this chip rounds rows to int8 only")
    values, scale = quantise(input, INT8)
    return values, scale[..., 0]


def swiglu_quant(
    x: Tensor, *, smooth_scales: Tensor | None = None, offsets: Tensor | None = None,
    group_index: Tensor | None = None, activate_left: bool = False, quant_mode: int = 0, group_list_type: int = 0,
    dst_type: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns SwiGLU's rows as int8 and their scales; without `activate_left` the second half is the gate."""
    op = "npu_swiglu_quant"
    need(x.dtype in FLOATS and x.ndim > 1, op, "rows must be floating")
    need(x.shape[-1] % 2 == 0 and x.shape[-1] <= 8192, op, "rows of two halves, up to 8192 values")
    need(quant_mode == 1, op, "quant_mode=0 needs static scales, which this chip lacks")
    need(smooth_scales is None and group_index is None and dst_type in (None, 1), op, "this chip rounds to int8 only")
    left, right = x.float().chunk(2, -1)
    gate, up = (left, right) if activate_left else (right, left)
    values, scale = quantise(torch.nn.functional.silu(gate) * up, INT8)
    return values, scale[..., 0]
