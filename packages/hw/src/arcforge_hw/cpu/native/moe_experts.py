"""Routed experts in C++: of few tokens, and of narrow experts; otherwise torch's grouped products run.

Few tokens read only the chosen experts. Of many, a narrow expert's rows are gathered, multiplied and put back while
they are in the cache, also for gradients: grouped products of such rows take longer to call than to compute.

Shapes: T tokens, D hidden, E experts, F twice the expert width f, K experts per token, R choices: T * K.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_hw.cpu import native
from arcforge_hw.torch_ops import moe_experts as grouped

_function = native.by_dtype("experts", "6p 5i")
_routed = native.by_dtype("routed_experts", "10p 6i")
_routed_backward = native.by_dtype("routed_experts_backward", "13p 6i")

LARGEST = 1 << 20
"""Maximum bytes of one expert's weights: with larger ones, which leave the cache, grouped products are as fast."""


def _check(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> None:
    """Raises `ValueError` for what C would read wrongly."""
    (experts, hidden, width), (tokens, chosen) = down_EDF.shape, expert_TK.shape
    native.check_dtypes(x_TD, gate_up_EFD, down_EDF)
    native.check_shape("x_TD", x_TD, tokens, hidden)
    native.check_shape("gate_up_EFD", gate_up_EFD, experts, 2 * width, hidden)
    native.check_shape("gate_TK", gate_TK, tokens, chosen)
    lowest, highest = torch.aminmax(expert_TK)
    if int(lowest) < 0 or int(highest) >= experts:
        raise ValueError(f"expert ids must be from 0 to {experts - 1}, got {int(lowest)} to {int(highest)}")


@torch.library.custom_op("arcforge_native::moe_experts", mutates_args=())
def _forward(
    x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the output [T, D], choices by expert [R], the experts' ends in them [E] and, for gradients, the
    up-projections [R, F]."""
    _check(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
    (experts, hidden, width), (tokens, chosen) = down_EDF.shape, expert_TK.shape
    given = [x.contiguous() for x in (x_TD, gate_up_EFD, down_EDF, expert_TK.long(), gate_TK.float())]
    out_TD, inner_RF = torch.empty_like(given[0]), x_TD.new_empty(tokens * chosen if needs_grad else 0, 2 * width)
    of_choice = x_TD.new_empty(tokens * chosen, hidden, dtype=torch.float32)
    order_R, ends_E = (given[3].new_empty(size) for size in (tokens * chosen, experts))
    at = native.pointers(*given, out_TD, order_R, ends_E, of_choice, *([inner_RF] if needs_grad else []))
    _routed(x_TD.dtype)(
        *at, *([] if needs_grad else [0]), tokens, chosen, experts, hidden, width, torch.get_num_threads()
    )
    return out_TD, order_R, ends_E, inner_RF


@_forward.register_fake
def _(
    x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = expert_TK.numel()
    order_R, ends_E = (expert_TK.new_empty(size, dtype=torch.int64) for size in (rows, len(down_EDF)))
    inner_RF = x_TD.new_empty(rows if needs_grad else 0, gate_up_EFD.shape[1])
    return x_TD.new_empty(x_TD.shape), order_R, ends_E, inner_RF


@torch.library.custom_op("arcforge_native::moe_experts_backward", mutates_args=())
def _backward(
    grad_TD: Tensor, x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, gate_TK: Tensor, order_R: Tensor,
    ends_E: Tensor, inner_RF: Tensor, needs_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of x, of both weights (empty unless needed) and of the gates."""
    (experts, hidden, width), (tokens, chosen) = down_EDF.shape, gate_TK.shape
    native.check_dtypes(x_TD, grad_TD)
    native.check_shape("grad_TD", grad_TD, tokens, hidden)
    native.check_shape("order_R", order_R, tokens * chosen)
    native.check_shape("ends_E", ends_E, experts)
    native.check_shape("inner_RF", inner_RF, tokens * chosen, 2 * width)
    given = [x.contiguous() for x in (grad_TD, x_TD, gate_up_EFD, down_EDF, gate_TK.float())]
    dx_TD, dgate_TK = torch.empty_like(given[1]), torch.empty_like(given[4])
    dgate_up_EFD, ddown_EDF = (x.new_empty(x.shape if needs_weights else 0) for x in given[2:4])
    of_choice = x_TD.new_empty(tokens * chosen, hidden, dtype=torch.float32)
    at = native.pointers(*given, order_R, ends_E, inner_RF, dx_TD, of_choice, dgate_TK)
    weights_at = native.pointers(dgate_up_EFD, ddown_EDF) if needs_weights else [0, 0]
    _routed_backward(x_TD.dtype)(*at, *weights_at, tokens, chosen, experts, hidden, width, torch.get_num_threads())
    return dx_TD, dgate_up_EFD, ddown_EDF, dgate_TK.to(gate_TK.dtype)


@_backward.register_fake
def _(
    grad_TD: Tensor, x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, gate_TK: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dgate_up, ddown = (x.new_empty(x.shape if rest[-1] else 0) for x in (gate_up_EFD, down_EDF))
    return x_TD.new_empty(x_TD.shape), dgate_up, ddown, gate_TK.new_empty(gate_TK.shape)


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x_TD, gate_up_EFD, down_EDF, _, gate_TK, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_TD, gate_up_EFD, down_EDF, gate_TK, *output[1:])


def _gradients(ctx: Any, grad_TD: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if grad_TD is None:
        return (None,) * 6
    needs_weights = any(ctx.needs_input_grad[1:3])
    dx, dgate_up, ddown, dgate = _backward(grad_TD, *ctx.saved_tensors, needs_weights)
    of_weights = (dgate_up, ddown) if needs_weights else (None, None)
    return dx, *of_weights, None, dgate, None


_forward.register_autograd(_gradients, setup_context=_setup)


def _narrow(down_EDF: Tensor) -> bool:
    """Returns whether an expert's weights are whole vectors that fit the cache."""
    _, hidden, width = down_EDF.shape
    whole = down_EDF.dtype in (torch.float32, torch.bfloat16)
    whole = whole and all(native.whole_vectors(size, torch.bfloat16) for size in (hidden, width))
    return whole and 3 * hidden * width * down_EDF.element_size() <= LARGEST


def moe_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.moe_experts`; one thread computes an expert."""
    (experts, hidden, width), (tokens, chosen) = down_EDF.shape, expert_TK.shape
    inputs = (x_TD, gate_up_EFD, down_EDF, gate_TK)
    few = 0 < tokens * chosen <= experts and x_TD.dtype in (torch.float32, torch.bfloat16)
    few = few and native.whole_vectors(hidden, x_TD.dtype) and native.whole_vectors(width, x_TD.dtype)
    if few and native.direct(*inputs):
        _check(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
        given = (x_TD, gate_up_EFD, down_EDF, expert_TK.long(), gate_TK.float())
        return native.output(_function, given, tokens, chosen, hidden, width)
    if not tokens or torch.compiler.is_compiling() or not _narrow(down_EDF):
        return grouped.moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    out_TD: Tensor = _forward(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK, needs_grad)[0]
    return out_TD
