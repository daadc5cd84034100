"""Linear layer with integer weights (spec 15). Shapes: T tokens, K inputs, N outputs, G groups of inputs."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.ops.quant import INT8, Quantised, dequantise, integer_rows, quantise


def quant_linear(
    x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None = None, rounds: bool = True
) -> Tensor:
    """Linear layer with integer weights (spec 15).

    Args:
        x: [..., K].
        weight: int8 [N, K], or packed int4, uint8 [N, K / 2] (`quant.pack_int4`).
        scale_NG: a scale for each output's groups of inputs, at least fp32.
        bias_N: in x's dtype.
        rounds: round activations to int8 per token (W8A8, W4A8), which needs one scale per output; otherwise
            activations keep their dtype and weights are dequantised (int4 weight-only).

    Returns:
        [..., N] in x's dtype; with `rounds` an exact sum of integers times both scales.
    """
    weight_NK = integer_rows(weight, x.shape[-1])
    if not rounds:
        return F.linear(x, dequantise(Quantised(weight_NK, scale_NG), x.dtype), bias_N)
    check_one_scale(scale_NG)
    q_TK, scale_T1 = quantise(x.flatten(0, -2), INT8)
    out_TN = exact_product(q_TK, weight_NK).to(scale_T1.dtype) * scale_T1 * scale_NG[:, 0].to(scale_T1.dtype)
    out: Tensor = out_TN.to(x.dtype).unflatten(0, x.shape[:-1])
    return out if bias_N is None else out + bias_N


EXACT_COLUMNS = 1024
"""Columns whose products of int8 (at most 127 each) sum to less than 2**24, which fp32 holds exactly."""
MOST_COLUMNS = 2**31 // 127**2
"""Columns whose sum an int32 holds."""


def exact_product(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    """Returns ``x @ weight.T`` of integers from -127 to 127 exactly, int32 [T, N]; needs neither int64 nor float64.

    Raises:
        ValueError: rows so long that a sum may exceed an int32.
    """
    if (columns := x_TK.shape[1]) > MOST_COLUMNS:
        raise ValueError(f"rows of {columns} must have at most {MOST_COLUMNS} columns: their sums must fit an int32")
    parts = zip(x_TK.split(EXACT_COLUMNS, 1), weight_NK.split(EXACT_COLUMNS, 1), strict=True)
    sums = [(x.float() @ weight.float().mT).to(torch.int32) for x, weight in parts]
    total: Tensor = functools.reduce(torch.add, sums)
    return total


def check_one_scale(scale_NG: Tensor) -> None:
    """Raises `ValueError` unless each row has one scale: an integer sum over several groups cannot apply theirs."""
    if scale_NG.shape[-1] != 1:
        raise ValueError(f"scale_NG has {scale_NG.shape[-1]} scales per output: rounded activations need exactly one")
