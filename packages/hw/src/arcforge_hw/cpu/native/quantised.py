"""Shared checks of layers with integer weights: whether C++ supports a call, and the weights' shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu import native

DTYPES = (torch.float32, torch.bfloat16)
LEAST_GROUP = 32
"""Minimum columns of a group: the columns unpacked at a time have one scale."""


def served(x: Tensor, rows: int, weights: tuple[Tensor, ...], scales: tuple[Tensor, ...], rounds: bool) -> bool:
    """Returns whether C++ supports these: few rows, nothing traced or differentiated, groups that `quant.h` can sum."""
    inputs = [weight.shape[-1] * (1 if weight.dtype == torch.int8 else 2) for weight in weights]
    groups = [scale.shape[-1] for scale in scales]
    if rounds:
        shaped = all(group == 1 for group in groups)
    else:
        shaped = all(weight.dtype == torch.uint8 for weight in weights)
        shaped = shaped and all(k % g == 0 and _steps(k // g, g) for k, g in zip(inputs, groups, strict=True))
    alike = all(weight.dtype == weights[0].dtype for weight in weights)
    wide = all(scale.dtype == torch.float32 for scale in scales)
    return (
        0 < rows <= native.QUANT_ROWS and x.dtype in DTYPES and shaped and alike and wide and native.direct(x, *scales)
    )


def _steps(group: int, groups: int) -> bool:
    """Returns whether groups are whole steps of 128 columns, quarters of a step, or whole rows."""
    return group == LEAST_GROUP or group % 128 == 0 or (groups == 1 and group % LEAST_GROUP == 0)


def check_weight(name: str, weight: Tensor, outputs: int, inputs: int) -> int:
    """Returns the bits of a weight of these sizes; raises `ValueError` for any other tensor."""
    bits = {torch.int8: 8, torch.uint8: 4}.get(weight.dtype)
    if bits is None or weight.shape[-2:] != (outputs, inputs * bits // 8) or (bits == 4 and inputs % 2):
        accepted = f"int8 [{outputs}, {inputs}] or packed int4, uint8 [{outputs}, {inputs} / 2]"
        raise ValueError(f"{name} must be {accepted}, not {weight.dtype} {list(weight.shape)}")
    return bits
