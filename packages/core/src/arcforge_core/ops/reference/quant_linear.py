"""Linear layer with integer weights (spec 15). Shapes: T tokens, K inputs, N outputs, G groups of inputs."""

from __future__ import annotations

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
    sum_TN = q_TK.double() @ weight_NK.double().mT  # exact: below 2**53
    out_TN = sum_TN.to(scale_T1.dtype) * scale_T1 * scale_NG[:, 0].to(scale_T1.dtype)
    out: Tensor = out_TN.to(x.dtype).unflatten(0, x.shape[:-1])
    return out if bias_N is None else out + bias_N


def check_one_scale(scale_NG: Tensor) -> None:
    """Raises `ValueError` unless each row has one scale: an integer sum over several groups cannot apply theirs."""
    if scale_NG.shape[-1] != 1:
        raise ValueError(f"scale_NG has {scale_NG.shape[-1]} scales per output: rounded activations need exactly one")
