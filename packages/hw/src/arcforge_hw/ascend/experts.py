"""Routed experts by grouped products, with gradients.

Shapes: T tokens, D hidden, E experts, F twice the expert width, K experts per token, R = T * K rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_hw.ascend.calls import matrices, npu
from arcforge_hw.ascend.rows import swiglu

GROUPS, EXPERTS, WIDEST = 1024, 2048, 65536
"""Groups of a grouped product, experts of the router, and values of an inner axis (less than)."""


def supports(call: OpCall) -> Verdict:
    """Returns whether the experts are documented for grouped products."""
    experts = call.sizes.get("experts", 2)
    if not 2 <= experts <= GROUPS:
        return Verdict(False, f"npu_grouped_matmul takes 2 to {GROUPS} groups, not {experts}")
    if (width := max(call.sizes.get(name, 1) for name in ("hidden", "width"))) >= WIDEST:
        return Verdict(False, f"npu_grouped_matmul takes rows of less than {WIDEST}, not {width}")
    return YES


def routes(call: OpCall) -> Verdict:
    """Returns whether the experts are documented for the router and for grouped products."""
    if (experts := call.sizes.get("experts", 3)) < 3:
        return Verdict(False, f"npu_moe_gating_top_k takes more than two experts, not {experts}")
    return supports(call)


class GroupedProduct(torch.autograd.Function):
    """Rows of each expert times the expert's matrix; `counts_E` are rows of each."""

    @staticmethod
    def forward(ctx: Any, x_RK: Tensor, weight_ENK: Tensor, counts_E: Tensor) -> Tensor:
        ctx.save_for_backward(x_RK, weight_ENK, counts_E)
        return grouped(x_RK, weight_ENK.mT, counts_E, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_RK, weight_ENK, counts_E = ctx.saved_tensors
        grad_RN = grads[0].contiguous()
        dx_RK = grouped(grad_RN, weight_ENK, counts_E, 0) if ctx.needs_input_grad[0] else None
        dw_ENK = grouped(grad_RN.mT, x_RK, counts_E, 2) if ctx.needs_input_grad[1] else None
        return dx_RK, dw_ENK, None


def grouped(x: Tensor, weight: Tensor, counts_E: Tensor, axis: int) -> Tensor:
    """Returns ``npu_grouped_matmul``'s one result: groups of rows (axis 0), or of the summed axis (2)."""
    out: Tensor = npu("npu_grouped_matmul")(
        [x], [matrices(weight)], group_list=counts_E, split_item=3, group_type=axis, group_list_type=1
    )[0]
    return out


def moe_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.moe_experts`."""
    experts = torch.arange(len(gate_up_EFD), device=expert_TK.device)
    counts_E = (expert_TK.flatten()[:, None] == experts).sum(0)
    rows_RD, place_R = npu("npu_moe_token_permute")(x_TD, expert_TK.to(torch.int32))
    inner_RF = npu("npu_swiglu")(GroupedProduct.apply(rows_RD, gate_up_EFD, counts_E), -1)
    out_RD = GroupedProduct.apply(inner_RF, down_EDF, counts_E)
    out_TD: Tensor = npu("npu_moe_token_unpermute")(out_RD, place_R, gate_TK.to(out_RD.dtype))
    return out_TD


def choose(x_TD: Tensor, router_ED: Tensor, bias_E: Tensor, chosen: int, scale: float) -> tuple[Tensor, Tensor]:
    """Returns experts [T, K] int32 and gates [T, K] float32, as `reference.route`."""
    logits_TE = F.linear(x_TD.float(), router_ED.float())
    gate_TK, expert_TK, _ = npu("npu_moe_gating_top_k")(
        logits_TE, chosen, bias=bias_E.float(), norm_type=1, routed_scaling_factor=scale, eps=1e-20
    )
    return expert_TK, gate_TK


def moe(
    x_TD: Tensor, router_ED: Tensor, bias_E: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, shared_gate_FD: Tensor,
    shared_up_FD: Tensor, shared_down_DF: Tensor, chosen: int, scale: float,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.moe`."""
    expert_TK, gate_TK = choose(x_TD, router_ED, bias_E, chosen, scale)
    rows_RD, place_R, counts_E, _ = routed(x_TD, expert_TK, len(gate_up_EFD), -1)
    inner_RF = npu("npu_swiglu")(grouped(rows_RD, gate_up_EFD.mT, counts_E, 0), -1)
    out_RD = grouped(inner_RF, down_EDF.mT, counts_E, 0)
    out_TD: Tensor = npu("npu_moe_token_unpermute")(out_RD, place_R, gate_TK.to(out_RD.dtype))
    shared_TF = swiglu(F.linear(x_TD, shared_gate_FD), F.linear(x_TD, shared_up_FD))
    return out_TD + F.linear(shared_TF, shared_down_DF)


def routed(x_TD: Tensor, expert_TK: Tensor, experts: int, quant_mode: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns rows in the order of their experts, each choice's row, rows of each expert, and scales of int8 rows."""
    found: tuple[Tensor, Tensor, Tensor, Tensor] = npu("npu_moe_init_routing_v2")(
        x_TD, expert_TK.to(torch.int32), active_num=expert_TK.numel(), expert_num=experts, expert_tokens_num_type=1,
        expert_tokens_num_flag=True, quant_mode=quant_mode, active_expert_range=[0, experts], row_idx_type=0,
    )  # fmt: skip
    return found
