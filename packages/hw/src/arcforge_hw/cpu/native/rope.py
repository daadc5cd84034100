"""Rotary embedding in C++. Shapes: T tokens, H heads, R rotated width, F = R / 2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_hw.cpu import native

_function = native.by_dtype("rope", "p 2i 3p 3i d i")


def _turn(x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor, sign: float) -> Tensor:
    tokens, heads, width = x_THR.shape
    x_THR = x_THR if x_THR.stride(2) == 1 else x_THR.contiguous()
    wide = torch.promote_types(x_THR.dtype, torch.float32)
    cos_TF, sin_TF = cos_TF.to(wide).contiguous(), sin_TF.to(wide).contiguous()
    if width % 2:
        raise ValueError(f"x_THR has width {width}: must be even, because pairs are rotated")
    native.check_shape("cos_TF", cos_TF, tokens, width // 2)
    native.check_shape("sin_TF", sin_TF, tokens, width // 2)
    out_THR = x_THR.new_empty(x_THR.shape)
    _function(x_THR.dtype)(
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
    out_THR: Tensor = (_turn if native.direct(x_THR) else _rope)(x_THR, cos_TF, sin_TF, 1.0)
    return out_THR
