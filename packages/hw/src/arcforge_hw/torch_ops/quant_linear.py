"""Products with quantised weights by torch: exact products of int8 values, or products with dequantised weights.

Shapes: T rows, K inputs, N outputs, G groups of inputs, D hidden, E experts, F twice the expert width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.ops.quant import INT8, Quantised, dequantise, integer_rows, quantise
from arcforge_core.ops.reference import check_one_scale
from arcforge_hw.torch_ops import bf16_product
from arcforge_hw.torch_ops.int8_product import int8_product

LEAST_ROWS = {"cuda": 17}
"""Minimum rows of `torch._int_mm`, by device type."""


def quant_linear(
    x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None = None, rounds: bool = True
) -> Tensor:
    """See `arcforge_core.ops.reference.quant_linear`; packed weights are unpacked for the product."""
    weight_NK = integer_rows(weight, x.shape[-1])
    if not rounds:
        return bf16_product.linear(x, dequantise(Quantised(weight_NK, scale_NG), x.dtype), bias_N)
    check_one_scale(scale_NG)
    q_TK, scale_T1 = quantise(x.flatten(0, -2), INT8)
    rows = len(q_TK)
    if rows < (least := LEAST_ROWS.get(x.device.type, 0)):
        q_TK = F.pad(q_TK, (0, 0, 0, least - rows))
    sum_TN = int8_product(q_TK, weight_NK)[:rows]
    out_TN = sum_TN.to(scale_T1.dtype).mul_(scale_T1).mul_(scale_NG[:, 0])
    out: Tensor = out_TN.to(x.dtype).unflatten(0, x.shape[:-1])
    return out if bias_N is None else out.add_(bias_N)


def quant_experts(
    x_TD: Tensor, gate_up: Tensor, gate_up_scale_EFG: Tensor, down: Tensor, down_scale_EDG: Tensor, expert_TK: Tensor,
    gate_TK: Tensor, rounds: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.quant_experts`."""
    run = functools.partial(quant_linear, rounds=rounds)
    return each_expert(x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK, gate_TK, run)


def each_expert(
    x_TD: Tensor, gate_up: Tensor, gate_up_scale_EFG: Tensor, down: Tensor, down_scale_EDG: Tensor, expert_TK: Tensor,
    gate_TK: Tensor, run: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    """`quant_experts` as two products `run` per chosen expert; a token's experts are added in its order of choice."""
    expert_R = expert_TK.flatten()
    order_R = expert_R.argsort(stable=True)
    counts = torch.bincount(expert_R, minlength=len(down)).tolist()
    y_RD = x_TD.new_empty(len(expert_R), x_TD.shape[1])
    start = 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        rows_R = order_R[start : start + count]
        gate, up = run(x_TD[rows_R // expert_TK.shape[1]], gate_up[expert], gate_up_scale_EFG[expert]).chunk(2, dim=-1)
        y_RD[rows_R] = run(F.silu(gate) * up, down[expert], down_scale_EDG[expert])
        start += count
    out_TD: Tensor = (y_RD.unflatten(0, expert_TK.shape) * gate_TK[..., None].to(y_RD.dtype)).sum(1)
    return out_TD
