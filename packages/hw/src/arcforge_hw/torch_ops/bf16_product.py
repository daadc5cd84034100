"""Products of bfloat16 matrices on CPUs: torch's own, or in float32 after a conversion where that is faster.

Processors differ: bfloat16 instructions multiply at twice the rate of float32 ones or at half of it, and without any a
product takes a hundred times as long. Products of bfloat16 numbers are exact in float32 and both add up in it, so the
results are as accurate. A measurement on the processor decides (`arcforge_core.ops.calibration`).

Shapes: T rows, K inputs, N outputs.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from arcforge_core.ops.calibration import calibrated, fastest, forced, source_of

FIGURE = "fp32_rows"
SIZE = 512
"""Columns of the measured products."""
ROWS = (32, 128, 512, 2048)
"""Measured rows."""
SECONDS, LEAST = 0.3, 2
"""Time and least calls of each number of rows."""
GAIN = 0.9
"""The share of the time of bfloat16 that float32 may take at most."""
NEVER = 1e9
"""The figure where float32 is not faster for the most rows."""
LARGEST = 1 << 28
"""Maximum bytes of converted weights."""


def wants_fp32(x: Tensor, weight: Tensor, rows: int) -> bool:
    """Returns whether float32 is faster for products of these rows with a matrix; gradients are computed likewise."""
    if x.device.type != "cpu" or x.dtype != torch.bfloat16 or torch.compiler.is_compiling():
        return False
    if type(x) not in (Tensor, torch.nn.Parameter):  # one without memory
        return False
    return 4 * weight.numel() <= LARGEST and rows >= least_rows()


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """See `arcforge_core.ops.reference.linear`."""
    fits = weight_NK.dtype == x.dtype and x.shape[-1] == weight_NK.shape[1]
    if not (fits and wants_fp32(x, weight_NK, x.numel() // weight_NK.shape[1])):
        return F.linear(x, weight_NK, bias_N)  # torch also raises the error for sizes that do not match
    out: Tensor = _Wide.apply(x, weight_NK, bias_N)
    return out


class _Wide(torch.autograd.Function):
    """`F.linear` in float32; converted inputs are not kept for the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_NK)
        return F.linear(x.float(), weight_NK.float(), None if bias_N is None else bias_N.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight_NK), (needs_x, needs_weight, needs_bias) = ctx.saved_tensors, ctx.needs_input_grad
        wide, of_x, of_weight, of_bias = grad.float(), None, None, None
        if needs_x:
            of_x = (wide @ weight_NK.float()).to(x.dtype)
        if needs_weight:
            of_weight = (_rows(wide).mT @ _rows(x).float()).to(x.dtype)
        if needs_bias:
            of_bias = _rows(wide).sum(0).to(x.dtype)
        return of_x, of_weight, of_bias


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def least_rows() -> float:
    """Returns the rows from which float32 is faster, from the variable or measured.

    Raises:
        ConfigError: `arcforge_core.ops.calibration.forced`.
    """
    given = forced()
    return given[FIGURE] if FIGURE in given else _measured()


@cache
def _measured() -> float:
    return calibrated("products", [FIGURE], lambda: {FIGURE: measure()})[FIGURE]


@torch.no_grad()
def measure() -> float:
    """Measures `least_rows`."""
    draw = torch.Generator().manual_seed(0)
    weight_NK = torch.randn(SIZE, SIZE, generator=draw).bfloat16()
    for rows in ROWS:
        x_TK = torch.randn(rows, SIZE, generator=draw).bfloat16()
        calls = {"bf16": partial(F.linear, x_TK, weight_NK), "fp32": partial(_Wide.apply, x_TK, weight_NK, None)}
        seconds = fastest(calls, SECONDS, LEAST)
        if seconds["fp32"] <= GAIN * seconds["bf16"]:
            return float(rows)
    return NEVER


def explained() -> str:
    """Returns `least_rows` in words."""
    rows = least_rows()
    since = "never" if rows >= NEVER else f"from {rows:g} rows on"
    return f"matrices in bf16 are multiplied in fp32 {since} ({source_of(FIGURE)})"
