"""Naive references of products with quantised weights; see `reference`, which lists them among the ops.

Shapes: T tokens, K inputs, N outputs, G groups of inputs, D hidden, E experts, F twice the expert width (in a dense
layer its width).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.ops.quant import INT8, Quantised, dequantise, integer_rows, quantise
from arcforge_core.ops.routing_reference import route


def quant_linear(
    x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None = None, rounds: bool = True
) -> Tensor:
    """Linear layer of integer weights (spec 15).

    Args:
        x: [..., K].
        weight: int8 [N, K], or packed int4, uint8 [N, K / 2] (`quant.pack_int4`).
        scale_NG: of each output's groups of inputs, at least fp32.
        bias_N: in x's dtype.
        rounds: round activations to int8 token by token (W8A8, W4A8), which needs one scale per output; else they
            stay as they are and weights are made wide (int4 weight-only).

    Returns:
        [..., N] in x's dtype; with `rounds` an exact sum of integers times both scales.
    """
    weight_NK = integer_rows(weight, x.shape[-1])
    if not rounds:
        return F.linear(x, dequantise(Quantised(weight_NK, scale_NG), x.dtype), bias_N)
    check_one_scale(scale_NG)
    q_TK, scale_T1 = quantise(x.flatten(0, -2), INT8)
    sum_TN = q_TK.double() @ weight_NK.double().mT  # exact: below 2**53
    out_TN = sum_TN.to(scale_T1.dtype) * scale_T1 * scale_NG[:, 0].to(scale_T1.dtype)
    out: Tensor = out_TN.to(x.dtype).unflatten(0, x.shape[:-1])
    return out if bias_N is None else out + bias_N


def check_one_scale(scale_NG: Tensor) -> None:
    """Raises `ValueError` unless rows have one scale: sums of integers have nowhere to put more."""
    if scale_NG.shape[-1] != 1:
        accepted = f"one scale per output, not {scale_NG.shape[-1]}"
        raise ValueError(f"products of integers need {accepted}: activations can only be rounded beside such weights")


def quant_experts(
    x_TD: Tensor,
    gate_up: Tensor,
    gate_up_scale_EFG: Tensor,
    down: Tensor,
    down_scale_EDG: Tensor,
    expert_TK: Tensor,
    gate_TK: Tensor,
    rounds: bool = True,
) -> Tensor:
    """`moe_experts` of integer weights as `quant_linear` takes them.

    Args:
        x_TD: tokens.
        gate_up: int8 [E, 2f, D] or packed int4 [E, 2f, D / 2].
        gate_up_scale_EFG: its scales.
        down: int8 [E, D, f] or packed int4 [E, D, f / 2].
        down_scale_EDG: its scales.
        expert_TK, gate_TK: as in `moe_experts`.
        rounds: as in `quant_linear`.
    """
    out = torch.zeros_like(x_TD)
    for expert in range(len(gate_up)):
        token, choice = torch.where(expert_TK == expert)
        inner = quant_linear(x_TD[token], gate_up[expert], gate_up_scale_EFG[expert], None, rounds)
        y = quant_linear(_swiglu(*inner.chunk(2, dim=-1)), down[expert], down_scale_EDG[expert], None, rounds)
        out = out.index_add(0, token, y * gate_TK[token, choice, None].to(y.dtype))
    return out


def quant_mlp(
    x_TD: Tensor,
    gate: Tensor,
    gate_scale_FG: Tensor,
    up: Tensor,
    up_scale_FG: Tensor,
    down: Tensor,
    down_scale_DG: Tensor,
    rounds: bool = True,
) -> Tensor:
    """`mlp` of integer weights as `quant_linear` takes them."""
    inner_TF = _swiglu(
        quant_linear(x_TD, gate, gate_scale_FG, None, rounds), quant_linear(x_TD, up, up_scale_FG, None, rounds)
    )
    return quant_linear(inner_TF, down, down_scale_DG, None, rounds)


def quant_moe(
    x_TD: Tensor,
    router_ED: Tensor,
    bias_E: Tensor,
    gate_up: Tensor,
    gate_up_scale_EFG: Tensor,
    down: Tensor,
    down_scale_EDG: Tensor,
    shared_gate: Tensor,
    shared_gate_scale_FG: Tensor,
    shared_up: Tensor,
    shared_up_scale_FG: Tensor,
    shared_down: Tensor,
    shared_down_scale_DG: Tensor,
    chosen: int,
    scale: float,
    rounds: bool = True,
) -> Tensor:
    """`moe` of integer weights as `quant_experts` and `quant_mlp` take them; the router is not of them."""
    expert_TK, gate_TK = route(x_TD, router_ED, bias_E, chosen, scale)
    routed_TD = quant_experts(x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK, gate_TK, rounds)
    shared = (shared_gate, shared_gate_scale_FG, shared_up, shared_up_scale_FG, shared_down, shared_down_scale_DG)
    return routed_TD + quant_mlp(x_TD, *shared, rounds)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up
