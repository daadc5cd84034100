"""SwiGLU in C++: one pass over memory, and one for its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from arcforge_core.ops import reference
from arcforge_hw.cpu import native

DTYPES = (torch.float32, torch.bfloat16)
_forward = native.by_dtype("swiglu", "3p 2i")
_backward = native.by_dtype("swiglu_backward", "5p 2i")


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.swiglu`."""
    alike = gate.shape == up.shape and gate.dtype == up.dtype and gate.dtype in DTYPES
    plain = gate.is_contiguous() and up.is_contiguous() and native.direct()
    if not (alike and plain and gate.numel()):
        return reference.swiglu(gate, up)
    if native.direct(gate, up):
        return _run(gate, up)
    out: Tensor = _Swiglu.apply(gate, up)
    return out


def in_place(gate: Tensor, up: Tensor, widened: bool = False) -> None:
    """Writes the result into `gate`; with `widened`, values in fp32 are rounded as in bfloat16 at each step.

    Args:
        gate, up: contiguous, of one shape, fp32, bf16 or float64; ``widened`` needs fp32.
    """
    name = "arcforge_swiglu_widened" if widened else f"arcforge_swiglu_{native.suffix(gate.dtype)}"
    native.function(name, "3p 2i")(*native.pointers(gate, up, gate), gate.numel(), torch.get_num_threads())


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _run(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (gate, up), grad = ctx.saved_tensors, grad.contiguous()
        of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
        places = native.pointers(grad, gate, up, of_gate, of_up)
        _backward(gate.dtype)(*places, gate.numel(), torch.get_num_threads())
        return of_gate, of_up


def _run(gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty_like(gate)
    _forward(gate.dtype)(*native.pointers(gate, up, out), gate.numel(), torch.get_num_threads())
    return out
