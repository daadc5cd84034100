"""SwiGLU in C++: one pass over memory, and one for its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native

DTYPES = (torch.float32, torch.bfloat16)
_forward_kernel = native.by_dtype("swiglu", "3p 2i")
_backward_kernel = native.by_dtype("swiglu_backward", "5p 2i")


@torch.library.custom_op("arcforge_native::swiglu", mutates_args=())
def _forward(gate: Tensor, up: Tensor) -> Tensor:
    return _run(gate.contiguous(), up.contiguous())


@_forward.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)


@torch.library.custom_op("arcforge_native::swiglu_backward", mutates_args=())
def _backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the gate and of the other factor."""
    native.check_dtypes(gate, up, grad)
    native.check_shape("grad", grad, *gate.shape)
    grad, gate, up = grad.contiguous(), gate.contiguous(), up.contiguous()
    of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
    places = native.pointers(grad, gate, up, of_gate, of_up)
    _backward_kernel(gate.dtype)(*places, gate.numel(), torch.get_num_threads())
    return of_gate, of_up


@_backward.register_fake
def _(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    of_gate, of_up = _backward(grad, *ctx.saved_tensors)
    return of_gate, of_up


_forward.register_autograd(_gradients, setup_context=_setup)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.swiglu`."""
    alike = gate.shape == up.shape and gate.dtype == up.dtype and gate.dtype in DTYPES
    if not (alike and gate.is_contiguous() and up.is_contiguous() and gate.numel()) or torch.compiler.is_compiling():
        return reference.swiglu(gate, up)
    if native.direct(gate, up):
        return _run(gate, up)
    out: Tensor = _forward(gate, up)
    return out


def _run(gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty_like(gate)
    _forward_kernel(gate.dtype)(*native.pointers(gate, up, out), gate.numel(), torch.get_num_threads())
    return out


def in_place(gate: Tensor, up: Tensor, widened: bool = False) -> None:
    """Writes the result into `gate`; with `widened`, values in fp32 are rounded as in bfloat16 at each step.

    Args:
        gate, up: contiguous, of one shape, fp32, bf16 or float64; ``widened`` needs fp32.
    """
    name = "arcforge_swiglu_widened" if widened else f"arcforge_swiglu_{native.suffix(gate.dtype)}"
    native.function(name, "3p 2i")(*native.pointers(gate, up, gate), gate.numel(), torch.get_num_threads())
