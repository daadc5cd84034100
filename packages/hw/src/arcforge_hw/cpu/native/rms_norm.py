"""RMSNorm in C++: one call without gradients; with them one pass over memory forward and one backward.

Shapes: N rows, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_hw.cpu import native
from arcforge_hw.cpu import rms_norm as operators

BLOCK = 64
"""Rows whose weight gradients are summed at a time."""
_few_rows = native.by_dtype("rms_norm", "p i 2p 2i d i")
_forward_kernel = native.by_dtype("rms_norm_forward", "4p 2i d i")
_backward_kernel = native.by_dtype("rms_norm_backward", "6p 4i")


@torch.library.custom_op("arcforge_native::rms_norm", mutates_args=())
def _forward(x_ND: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns the normed rows, and the reciprocal of each row's root mean square [N]."""
    rows, width = x_ND.shape
    native.check_shape("weight", weight_D, width)
    x_ND, weight_D = x_ND.contiguous(), weight_D.float().contiguous()
    out_ND, rstd_N = torch.empty_like(x_ND), weight_D.new_empty(rows)
    run = _forward_kernel(x_ND.dtype)
    run(*native.pointers(x_ND, weight_D, out_ND, rstd_N), rows, width, eps, torch.get_num_threads())
    return out_ND, rstd_N


@_forward.register_fake
def _(x_ND: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x_ND.new_empty(x_ND.shape), x_ND.new_empty(len(x_ND), dtype=torch.float32)


@torch.library.custom_op("arcforge_native::rms_norm_backward", mutates_args=())
def _backward(grad_ND: Tensor, x_ND: Tensor, weight_D: Tensor, rstd_N: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of x and of the weight."""
    rows, width = x_ND.shape
    native.check_dtypes(x_ND, grad_ND)
    native.check_shape("grad_ND", grad_ND, rows, width)
    grad_ND, x_ND, wide_D = grad_ND.contiguous(), x_ND.contiguous(), weight_D.float().contiguous()
    dx_ND, sums = torch.empty_like(x_ND), wide_D.new_empty(-(-rows // BLOCK), width)
    run = _backward_kernel(x_ND.dtype)
    run(*native.pointers(grad_ND, x_ND, wide_D, rstd_N, dx_ND, sums), rows, width, BLOCK, torch.get_num_threads())
    return dx_ND, sums.sum(0).to(weight_D.dtype)


@_backward.register_fake
def _(grad_ND: Tensor, x_ND: Tensor, weight_D: Tensor, rstd_N: Tensor) -> tuple[Tensor, Tensor]:
    return x_ND.new_empty(x_ND.shape), weight_D.new_empty(weight_D.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_ND, weight_D, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_ND, weight_D, output[1])


def _gradients(ctx: Any, grad_ND: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad_ND is None:
        return None, None, None
    return *_backward(grad_ND, *ctx.saved_tensors), None


_forward.register_autograd(_gradients, setup_context=_setup)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `arcforge_core.ops.reference.rms_norm`."""
    if not native.direct(x, weight):
        return differentiable(x, weight, eps)
    native.check_shape("weight", weight, x.shape[-1])
    x_TD, weight = x.reshape(-1, x.shape[-1]), weight.to(x.dtype).contiguous()
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    out = x.new_empty(x.shape)
    run, threads = _few_rows(x.dtype), torch.get_num_threads()
    run(x_TD.data_ptr(), x_TD.stride(0), weight.data_ptr(), out.data_ptr(), *x_TD.shape, eps, threads)
    return out


def differentiable(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` with gradients."""
    if x.dtype not in (torch.float32, torch.bfloat16) or torch.compiler.is_compiling():
        return operators.rms_norm(x, weight, eps)
    out: Tensor = _forward(x.reshape(-1, x.shape[-1]), weight, eps)[0]
    return out.view(x.shape)
