"""Routed experts by grouped matrix products: rows sorted by expert, dispatched and combined by gathers only.

A scatter would be an `index_put_` in the backward pass; the inverse permutation turns both directions into gathers.

In bfloat16 on CPUs each expert's rows are padded to whole `blocks` with rows of gate 0. For few rows of each expert
float32 can be faster (`expert_rows`).

Shapes: T tokens, D hidden, E experts, F twice the expert width f, K experts per token, R rows sorted by expert: T * K,
plus padding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_hw.torch_ops.blocks import BLOCK, in_blocks
from arcforge_hw.torch_ops.expert_rows import in_fp32, wants_fp32


def grouped_mm(a: Tensor, b: Tensor, offsets_E: Tensor) -> Tensor:
    """`F.grouped_mm`: rows of a [R, X] per expert times b [E, X, Y], or a [X, R] times b [R, Y] per expert."""
    return F.grouped_mm(a, b, offs=offsets_E)


def _swiglu(gate_up_RF: Tensor) -> Tensor:
    gate, up = gate_up_RF.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@torch.library.custom_op("arcforge_torch::moe_experts", mutates_args=())
def _forward(
    x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the output [T, D], the up-projections [R, F], the sorting order [R] and the experts' ends [E].

    The order has the index of a choice, or -1 for a padding row.
    """
    experts, (tokens, chosen) = len(gate_up_EFD), expert_TK.shape
    expert_R, order_R = expert_TK.flatten().sort(stable=True)
    _check_range(expert_R, experts)
    ends_E = torch.searchsorted(expert_R, torch.arange(experts, device=expert_R.device), right=True, out_int32=True)
    if in_blocks(x_TD):
        order_R, ends_E = _fill_blocks(expert_R, order_R, ends_E)
    inner_RF = grouped_mm(x_TD.index_select(0, _token(order_R, chosen)), gate_up_EFD.mT, ends_E)
    gated_Rf = _swiglu(inner_RF).mul_(_gate(gate_TK, order_R, inner_RF.dtype))
    y_RD = grouped_mm(gated_Rf, down_EDF.mT, ends_E)
    out_TD = _combine(y_RD, order_R, tokens, chosen)
    return out_TD, inner_RF, order_R, ends_E


def _fill_blocks(expert_R: Tensor, order_R: Tensor, ends_E: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the order and the ends with each expert's rows padded to whole blocks."""
    counts_E = ends_E.diff(prepend=ends_E.new_zeros(1))
    filled_E = -(-counts_E // BLOCK) * BLOCK
    filled_ends_E = filled_E.cumsum(0, dtype=torch.int32)
    later_E = (filled_ends_E - filled_E) - (ends_E - counts_E)
    filled_R = order_R.new_full((int(filled_ends_E[-1]),), -1)
    filled_R[torch.arange(len(order_R)) + later_E[expert_R]] = order_R
    return filled_R, filled_ends_E


def _token(order_R: Tensor, chosen: int) -> Tensor:
    """Returns the token of each row; arbitrary for padding."""
    return order_R.clamp(min=0) // chosen


def _gate(gate_TK: Tensor, order_R: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the gates [R, 1], with 0 for padding: index -1 selects an appended zero."""
    return F.pad(gate_TK.flatten(), (0, 1))[order_R, None].to(dtype)


def _check_range(expert_R: Tensor, experts: int) -> None:
    """Rejects expert ids out of range: rows after the last expert's would be garbage."""
    fits = ((expert_R[:1] >= 0) & (expert_R[-1:] < experts)).all()
    message = f"expert ids must be from 0 to {experts - 1}"
    if expert_R.device.type != "cpu":  # the host does not wait for the device
        torch._assert_async(fits, message)
    elif not fits:
        raise ValueError(f"{message}, got {int(expert_R[0])} to {int(expert_R[-1])}")


def _combine(y_RD: Tensor, order_R: Tensor, tokens: int, chosen: int) -> Tensor:
    """Sums the rows of each token in the order of its choices; accumulates in fp32."""
    inverse = order_R.new_empty(tokens * chosen + 1)  # one more for padding
    inverse[order_R] = torch.arange(len(order_R), device=order_R.device)
    return F.embedding_bag(inverse[:-1].view(tokens, chosen), y_RD, mode="sum")


@_forward.register_fake
def _(
    x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = torch.library.get_ctx().new_dynamic_size() if in_blocks(x_TD) else expert_TK.numel()
    return (
        torch.empty_like(x_TD, memory_format=torch.contiguous_format),
        x_TD.new_empty(rows, gate_up_EFD.shape[1]),
        expert_TK.new_empty(rows),
        expert_TK.new_empty(gate_up_EFD.shape[0], dtype=torch.int32),
    )


@torch.library.custom_op("arcforge_torch::moe_experts_backward", mutates_args=())
def _backward(
    grad_TD: Tensor, x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, gate_TK: Tensor, inner_RF: Tensor,
    order_R: Tensor, ends_E: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of x, both weights and the gates."""
    tokens, chosen = gate_TK.shape
    token_R = _token(order_R, chosen)
    grad_RD, gate_R1 = grad_TD.index_select(0, token_R), _gate(gate_TK, order_R, inner_RF.dtype)
    gate_Rf, up_Rf = inner_RF.chunk(2, dim=-1)
    silu_Rf = F.silu(gate_Rf)
    act_Rf = silu_Rf * up_Rf
    grad_gated_Rf = grouped_mm(grad_RD, down_EDF, ends_E)
    grad_down_EDF = grouped_mm(grad_RD.mT, act_Rf * gate_R1, ends_E)
    grad_gate = gate_TK.new_empty(tokens * chosen + 1)
    grad_gate[order_R] = torch.linalg.vecdot(grad_gated_Rf, act_Rf).to(gate_TK.dtype)
    grad_act_Rf = grad_gated_Rf.mul_(gate_R1)
    grad_inner_RF = torch.empty_like(inner_RF)
    grad_gate_Rf, grad_up_Rf = grad_inner_RF.chunk(2, dim=-1)
    torch.mul(grad_act_Rf, silu_Rf, out=grad_up_Rf)
    torch.ops.aten.silu_backward.grad_input(grad_act_Rf.mul_(up_Rf), gate_Rf, grad_input=grad_gate_Rf)
    grad_gate_up_EFD = grouped_mm(grad_inner_RF.mT, x_TD.index_select(0, token_R), ends_E)
    grad_x_TD = _combine(grouped_mm(grad_inner_RF, gate_up_EFD, ends_E), order_R, tokens, chosen)
    return grad_x_TD, grad_gate_up_EFD, grad_down_EDF, grad_gate[:-1].view_as(gate_TK)


@_backward.register_fake
def _(
    grad_TD: Tensor, x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, gate_TK: Tensor, *_: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_x, grad_gate_up, grad_down, grad_gate = (x.new_empty(x.shape) for x in (x_TD, gate_up_EFD, down_EDF, gate_TK))
    return grad_x, grad_gate_up, grad_down, grad_gate


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x_TD, gate_up_EFD, down_EDF, _, gate_TK = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # avoids zeros as large as the saved tensors
    ctx.save_for_backward(x_TD, gate_up_EFD, down_EDF, gate_TK, *output[1:])


def _gradients(ctx: Any, grad_TD: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if grad_TD is None:
        return (None,) * 5
    grad_x, grad_gate_up, grad_down, grad_gate = _backward(grad_TD, *ctx.saved_tensors)
    return grad_x, grad_gate_up, grad_down, None, grad_gate


_forward.register_autograd(_gradients, setup_context=_setup)


def grouped_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """`moe_experts` in the dtype of its arguments."""
    out_TD: Tensor = _forward(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)[0]
    return out_TD


def moe_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.moe_experts`; the gate scales the rows before the down-projection."""
    wide = wants_fp32(x_TD, gate_up_EFD, down_EDF, expert_TK, grouped_experts)
    function = in_fp32(grouped_experts) if wide else grouped_experts
    return function(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
